import { type CallOptions, type Init, body, call } from "./request.js";
import type {
  Agent,
  ChannelBinding,
  InstallReport,
  ReloadReport,
  RuntimeModel,
  SecurityPosture,
  Skill,
  SkillStatus,
  WorkspaceFile,
} from "./wire/index.js";

type Send = <T>(path: string, init: Init) => Promise<T>;

/**
 * Management of one runtime. A method that the adapter does not have throws a `BridgeError` with the code
 * `NOT_SUPPORTED`. Changes return `undefined` if the adapter answers without content.
 */
export class Management {
  readonly #send: Send;

  constructor(send: Send) {
    this.#send = send;
  }

  agents(options: CallOptions = {}): Promise<Agent[]> {
    return this.#send("/api/v2/agents", call(options));
  }

  agent(id: string, options: CallOptions = {}): Promise<Agent> {
    return this.#send(at("agents", id), call(options));
  }

  createAgent(agent: Agent, options: CallOptions = {}): Promise<Agent | undefined> {
    return this.#send("/api/v2/agents", body("POST", agent, options));
  }

  /** Replaces the agent with this id. */
  updateAgent(agent: Agent, options: CallOptions = {}): Promise<Agent | undefined> {
    return this.#send(at("agents", agent.agentId), body("PUT", agent, options));
  }

  removeAgent(id: string, options: CallOptions = {}): Promise<void> {
    return this.#send(at("agents", id), { ...call(options), method: "DELETE" });
  }

  /** Returns names and sizes of the files in an agent's workspace, without their content. */
  files(id: string, options: CallOptions = {}): Promise<WorkspaceFile[]> {
    return this.#send(at("agents", id, "files"), call(options));
  }

  /** Returns one file with its content; `path` is relative to the workspace. */
  file(id: string, path: string, options: CallOptions = {}): Promise<WorkspaceFile> {
    return this.#send(at("agents", id, "files", ...path.split("/")), call(options));
  }

  /** Writes one file. Code `CONFLICT`: it was changed by another writer at the same time. */
  writeFile(id: string, path: string, content: string, options: CallOptions = {}): Promise<void> {
    return this.#send(at("agents", id, "files", ...path.split("/")), body("PUT", { content }, options));
  }

  removeFile(id: string, path: string, options: CallOptions = {}): Promise<void> {
    return this.#send(at("agents", id, "files", ...path.split("/")), { ...call(options), method: "DELETE" });
  }

  bindings(id: string, options: CallOptions = {}): Promise<ChannelBinding[]> {
    return this.#send(at("agents", id, "bindings"), call(options));
  }

  /** Replaces all bindings of an agent. */
  setBindings(id: string, bindings: ChannelBinding[], options: CallOptions = {}): Promise<void> {
    return this.#send(at("agents", id, "bindings"), body("PUT", { bindings }, options));
  }

  skills(options: CallOptions = {}): Promise<Skill[]> {
    return this.#send("/api/v2/skills", call(options));
  }

  skill(key: string, options: CallOptions = {}): Promise<Skill> {
    return this.#send(at("skills", key), call(options));
  }

  createSkill(skill: Skill, options: CallOptions = {}): Promise<Skill | undefined> {
    return this.#send("/api/v2/skills", body("POST", skill, options));
  }

  /** Replaces the skill with this key. */
  updateSkill(skill: Skill, options: CallOptions = {}): Promise<Skill | undefined> {
    return this.#send(at("skills", skill.skillKey), body("PUT", skill, options));
  }

  removeSkill(key: string, options: CallOptions = {}): Promise<void> {
    return this.#send(at("skills", key), { ...call(options), method: "DELETE" });
  }

  skillStatus(key: string, options: CallOptions = {}): Promise<SkillStatus> {
    return this.#send(at("skills", key, "status"), call(options));
  }

  installDependencies(key: string, options: CallOptions = {}): Promise<InstallReport> {
    return this.#send(at("skills", key, "dependencies"), { ...call(options), method: "POST" });
  }

  /** Returns the model catalogue, or the models that the runtime discovers. */
  models(options: CallOptions = {}): Promise<RuntimeModel[]> {
    return this.#send("/api/v2/models", call(options));
  }

  /** Returns the model catalogue only. */
  systemModels(options: CallOptions = {}): Promise<RuntimeModel[]> {
    return this.#send("/api/v2/system/models", call(options));
  }

  securityPosture(options: CallOptions = {}): Promise<SecurityPosture> {
    return this.#send("/api/v2/system/security", call(options));
  }

  reloadConfig(options: CallOptions = {}): Promise<ReloadReport> {
    return this.#send("/api/v2/system/reload", { ...call(options), method: "POST" });
  }
}

function at(...parts: string[]): string {
  return `/api/v2/${parts.map(encodeURIComponent).join("/")}`;
}
