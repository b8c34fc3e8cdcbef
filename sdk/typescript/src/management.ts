import { body } from "./request.js";

/** Agent as stored by the runtime. Other members are specific to the runtime. */
export interface Agent {
  agentId: string;
  name?: string;
  model?: string;
  systemPrompt?: string;
  [member: string]: unknown;
}

/** File of an agent's workspace; its content is absent in lists. */
export interface WorkspaceFile {
  path: string;
  sizeBytes?: number;
  content?: string;
}

/** Binding of an agent to a channel on which it answers. Other members are specific to the runtime. */
export interface ChannelBinding {
  channel: string;
  [member: string]: unknown;
}

/** Skill as stored by the runtime. Other members, such as `enabled`, are specific to the runtime. */
export interface Skill {
  skillKey: string;
  name?: string;
  description?: string;
  content?: string;
  [member: string]: unknown;
}

export interface SkillStatus {
  /** True if the skill can be used now. */
  ready: boolean;
  /** Missing dependencies. */
  missing?: string[];
  /** If not ready: the reason and the fix. */
  message?: string;
}

export interface InstallReport {
  /** Newly installed dependencies. */
  installed: string[];
  /** Dependencies that are still missing. */
  failed: string[];
}

/** Model of the runtime's catalogue. Other members are specific to the runtime. */
export interface RuntimeModel {
  /** The value of a request's `model` that selects it. */
  modelId: string;
  name?: string;
  /** Maker of the model. */
  provider?: string;
  [member: string]: unknown;
}

/** Security of the runtime's setup, as reported by the runtime. */
export interface SecurityPosture {
  /** True if executions are isolated from the machine; absent or null if that is not known. */
  sandboxed?: boolean | null;
  /** Severities are the runtime's own terms. */
  findings: { severity: string; message: string }[];
}

/** Result of a reload of the runtime's configuration. */
export interface ReloadReport {
  changed: boolean;
  /** Notes such as settings that need a restart. */
  notes?: string[];
}

type Send = <T>(path: string, init?: RequestInit) => Promise<T>;

/**
 * Management of one runtime. A method that the adapter does not have throws a `BridgeError` with the code
 * `NOT_SUPPORTED`. Changes return `undefined` if the adapter answers without content.
 */
export class Management {
  readonly #send: Send;

  constructor(send: Send) {
    this.#send = send;
  }

  agents(): Promise<Agent[]> {
    return this.#send("/api/v2/agents");
  }

  agent(id: string): Promise<Agent> {
    return this.#send(at("agents", id));
  }

  createAgent(agent: Agent): Promise<Agent | undefined> {
    return this.#send("/api/v2/agents", body("POST", agent));
  }

  /** Replaces the agent with this id. */
  updateAgent(agent: Agent): Promise<Agent | undefined> {
    return this.#send(at("agents", agent.agentId), body("PUT", agent));
  }

  removeAgent(id: string): Promise<void> {
    return this.#send(at("agents", id), { method: "DELETE" });
  }

  /** Returns names and sizes of the files in an agent's workspace, without their content. */
  files(id: string): Promise<WorkspaceFile[]> {
    return this.#send(at("agents", id, "files"));
  }

  /** Returns one file with its content; `path` is relative to the workspace. */
  file(id: string, path: string): Promise<WorkspaceFile> {
    return this.#send(at("agents", id, "files", ...path.split("/")));
  }

  /** Writes one file. Code `CONFLICT`: it was changed by another writer at the same time. */
  writeFile(id: string, path: string, content: string): Promise<void> {
    return this.#send(at("agents", id, "files", ...path.split("/")), body("PUT", { content }));
  }

  removeFile(id: string, path: string): Promise<void> {
    return this.#send(at("agents", id, "files", ...path.split("/")), { method: "DELETE" });
  }

  bindings(id: string): Promise<ChannelBinding[]> {
    return this.#send(at("agents", id, "bindings"));
  }

  /** Replaces all bindings of an agent. */
  setBindings(id: string, bindings: ChannelBinding[]): Promise<void> {
    return this.#send(at("agents", id, "bindings"), body("PUT", { bindings }));
  }

  skills(): Promise<Skill[]> {
    return this.#send("/api/v2/skills");
  }

  skill(key: string): Promise<Skill> {
    return this.#send(at("skills", key));
  }

  createSkill(skill: Skill): Promise<Skill | undefined> {
    return this.#send("/api/v2/skills", body("POST", skill));
  }

  /** Replaces the skill with this key. */
  updateSkill(skill: Skill): Promise<Skill | undefined> {
    return this.#send(at("skills", skill.skillKey), body("PUT", skill));
  }

  removeSkill(key: string): Promise<void> {
    return this.#send(at("skills", key), { method: "DELETE" });
  }

  skillStatus(key: string): Promise<SkillStatus> {
    return this.#send(at("skills", key, "status"));
  }

  installDependencies(key: string): Promise<InstallReport> {
    return this.#send(at("skills", key, "dependencies"), { method: "POST" });
  }

  /** Returns the model catalogue, or the models that the runtime discovers. */
  models(): Promise<RuntimeModel[]> {
    return this.#send("/api/v2/models");
  }

  /** Returns the model catalogue only. */
  systemModels(): Promise<RuntimeModel[]> {
    return this.#send("/api/v2/system/models");
  }

  securityPosture(): Promise<SecurityPosture> {
    return this.#send("/api/v2/system/security");
  }

  reloadConfig(): Promise<ReloadReport> {
    return this.#send("/api/v2/system/reload", { method: "POST" });
  }
}

function at(...parts: string[]): string {
  return `/api/v2/${parts.map(encodeURIComponent).join("/")}`;
}
