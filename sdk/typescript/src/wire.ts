/** Types of the HTTP interface, with its names. Times are RFC 3339, durations milliseconds. */

export type DispatchStatus = "accepted" | "queued" | "running" | "finished";
export type DeliveryStatus = "pending" | "delivered" | "dead" | "superseded";
export type HealthStatus = "healthy" | "degraded" | "offline";

/** Dispatch to post. `callbackUrl: null` requests no callback. */
export interface DispatchRequest {
  taskId: string;
  agentId: string;
  message: string;
  /** Files that belong to the message; 20 MiB together. */
  attachments?: Attachment[];
  callbackUrl: string | null;
  provider?: string;
  systemPrompt?: string | null;
  model?: string | null;
  options?: ModelOptions;
  /** Time limit of each attempt, in seconds. */
  timeout?: number;
  /** Time without an event, in seconds, after which an attempt ends as `stalled`. */
  idleTimeoutSeconds?: number;
  queueTimeoutSeconds?: number;
  notBefore?: string;
  deadline?: string;
  tools?: Tool[];
  /** Answers to the tool calls that the last dispatch of the session returned. */
  toolResults?: ToolResult[];
  mcpServers?: string[];
  workspace?: { dir?: string; files?: { path: string; content: string }[] };
  outputStrategy?: "file" | "stream" | "structured";
  /** JSON Schema for `structuredOutput`. */
  outputSchema?: object;
  outputFile?: string;
  sessionId?: string;
  requires?: string[];
  preferences?: {
    costTier?: "low" | "medium" | "high";
    latencyProfile?: "fast" | "moderate" | "variable";
    providers?: string[];
  };
  priority?: number;
  recovery?: "fail" | "retry" | "resume";
  budget?: { maxCostUsd?: number; maxTokens?: number };
  callback?: {
    headers?: Record<string, string>;
    bearer?: string;
    secret?: string;
    retry?: "default" | "compat" | { maxElapsedSeconds: number };
  };
  userId?: string;
  projectId?: string;
  runId?: string;
  stepId?: string;
  gatewayId?: string;
  /** Returned unchanged. */
  metadata?: Record<string, unknown>;
}

/** File that belongs to the message, with exactly one source of its content. */
export type Attachment = { name: string; mediaType: string } & (
  | { /** Base64. */ data: string }
  | { /** Relative to `workspace.dir`. */ path: string }
  | { /** Fetched by the bridge. */ url: string }
);

/** File that a run produced. Without `href` its content was not kept; `error` is the reason. */
export interface OutputFile {
  name: string;
  mediaType: string;
  bytes?: number;
  sha256?: string;
  href?: string;
  error?: string;
}

/** Options of the model; an adapter lists in `profile.options` those that it honours. */
export interface ModelOptions {
  temperature?: number;
  topP?: number;
  maxOutputTokens?: number;
  reasoning?: "off" | "low" | "medium" | "high";
  toolChoice?: "auto" | "none" | "required" | { tool: string };
  stop?: string[];
  seed?: number;
}

/** Tool in the format of the bridge, of MCP or of OpenAI. */
export type Tool =
  | { name: string; description?: string; inputSchema: object }
  | { type: "function"; function: { name: string; description?: string; parameters?: object } };

export interface ToolResult {
  toolCallId: string;
  name: string;
  output: unknown;
  isError?: boolean;
}

export interface Accepted {
  taskId: string;
  dispatchId: string;
  status: string;
  provider: string;
  duplicate: boolean;
  warnings: string[];
  links: { self: string; events: string; cancel: string };
}

export interface Usage {
  inputTokens: number | null;
  outputTokens: number | null;
  cacheReadTokens: number | null;
  cacheWriteTokens: number | null;
  thinkingTokens: number | null;
  totalTokens: number | null;
  /** Shares by model, if the adapter turned from one to another; the last one answered. */
  byModel?: (Omit<Usage, "byModel"> & { model: string; reason?: string; error?: string })[];
}

export interface ToolCall {
  toolCallId: string;
  name: string;
  input: unknown;
}

export interface Result {
  status: "ok" | "error";
  output?: string;
  structuredOutput?: unknown;
  error?: string;
  errorCode?: string;
  model?: string;
  sessionId?: string;
  durationMs?: number;
  costUsd?: number | null;
  usage?: Usage | null;
  toolCalls?: ToolCall[];
  outputFiles?: OutputFile[];
  /** The adapter's hint on an error: the same request can succeed later. */
  retryable?: boolean;
  /** Wait that the runtime asked for, at most a day. */
  retryAfterMs?: number;
  /** Cause of an error as the runtime reported it. */
  details?: unknown;
  [field: string]: unknown;
}

/** One stage of routing: adapters kept, and adapters dropped with the reasons; of the stage `models`, models. */
export interface RoutingStep {
  layer: number;
  name: string;
  kept: string[];
  dropped: { provider: string; model?: string; reason: string }[];
}

export interface Dispatch {
  taskId: string;
  agentId: string;
  dispatchId: string;
  provider: string;
  pinned: boolean;
  status: DispatchStatus;
  outcome?: "ok" | "error";
  errorCode?: string;
  cancelRequested: boolean;
  /** Present while the dispatch waits for an approval. */
  approval?: "waiting";
  priority: number;
  attempt: number;
  /** Attempts begun so far; not in a list. */
  attempts?: { number: number; startedAt: string; endedAt?: string; retriedBecause?: string }[];
  acceptedAt: string;
  notBefore?: string;
  startBy: string;
  startedAt?: string;
  finishedAt?: string;
  traceId: string;
  runId?: string;
  sessionId?: string;
  retryOf?: string;
  callbackUrl: string | null;
  routing: RoutingStep[];
  result?: Result;
  deliveries?: { id: string; status: DeliveryStatus; attemptCount: number; dueAt?: string; href: string }[];
}

export interface DeliveryAttempt {
  number: number;
  at: string;
  durationMs: number;
  status?: number;
  error?: string;
  answer?: string;
  [field: string]: unknown;
}

export interface Delivery {
  id: string;
  dispatchId: string;
  taskId: string;
  url: string;
  status: DeliveryStatus;
  attemptCount: number;
  attempts: DeliveryAttempt[];
  createdAt: string;
  dueAt?: string;
  settledAt?: string;
  /** Circuit breaker that a pending delivery waits for; absent if it is closed. */
  destination?: Destination;
  [field: string]: unknown;
}

/** Receiver whose circuit breaker is open or half-open after repeated failures. */
export interface Destination {
  /** Scheme, host and port. */
  origin: string;
  /** `half_open`: a few attempts are let through, and their outcomes decide. */
  state: "open" | "half_open";
  openedAt: string;
  probeAt: string;
  openings: number;
  reason: string;
}

export interface HealthReport {
  status: HealthStatus;
  message?: string;
  /** Figures of the adapter itself at the last check; not in the history. */
  details?: Record<string, unknown>;
  checkedAt: string;
}

/** Quarantine of an adapter whose process ended too often: it is not restarted until the adapter is reloaded. */
export interface Quarantine {
  since: string;
  crashes: number;
  /** Reason of the last exit. */
  reason: string;
}

export interface Profile {
  capabilities: string[];
  nativeTools: string[];
  maxConcurrent: number;
  outputStrategies: string[];
  options?: string[];
  costTier: string;
  latencyProfile: string;
}

/** State of the agents that routing knows of an adapter. */
export interface AgentListing {
  count: number;
  /** False if the runtime has more than 10,000; the rest is not routed by. */
  complete: boolean;
  listedAt: string | null;
  ageSeconds: number | null;
  /** Reason why the last request failed; the agents are those of the answer before. */
  error?: string;
}

export interface Adapter {
  provider: string;
  version: string | null;
  path: string | null;
  digest: string | null;
  isolation: string;
  interfaces: string[];
  /** Agents that routing knows; `null` for an adapter that lists none. */
  agents: AgentListing | null;
  maxConcurrent: number;
  running: number;
  /** Time of the pause; absent or null unless paused. */
  pausedAt?: string | null;
  quarantine?: Quarantine | null;
  /** Generations replaced by a reload that still have running executions. */
  leaving?: { version: string; digest: string; running: number }[];
  health: HealthReport;
  history: HealthReport[];
  profile: Profile | null;
}

export interface Health {
  status: HealthStatus;
  version: string;
  instanceId: string;
  uptimeSeconds: number;
  draining: boolean;
  store: { status: HealthStatus };
  adapters: Record<string, HealthReport & { running: number; queued: number; maxConcurrent: number; pausedAt?: string; quarantine?: Quarantine }>;
  deliveries: { pending: number; dead: number };
  services: { known: number; unavailable: number; problems: number };
  /** Signals of AI tools: address of the local agent, `off` or `unavailable`. */
  signals: { agent: string; rules: number; sessions: number };
  children?: { living: number };
}

/** Event of the log. `id` is a cursor over the whole log; `seq` counts within a dispatch. */
export interface BridgeEvent {
  id: string;
  seq: number | null;
  type: string;
  taskId: string | null;
  agentId: string | null;
  dispatchId: string | null;
  provider: string | null;
  timestamp: string;
  attempt?: number;
  traceId?: string;
  runId?: string;
  data?: Record<string, unknown>;
}

export interface Page<T> {
  items: T[];
  nextCursor: string | null;
}

export interface ApprovalFilter {
  /** Default: `waiting`. */
  status?: "waiting" | "approved" | "rejected";
  limit?: number;
  cursor?: string;
}

/** Command of an external service that was held for an approval. */
export interface Approval {
  status: "waiting" | "approved" | "rejected";
  /** `null` while it waits. */
  decision: { at: string; by: string; reason: string | null } | null;
  entry: string | null;
  /** Arguments as JSON. */
  args: string | null;
  /** Identity of the submitter. */
  caller: unknown;
  dispatch: Dispatch;
}

/** External services that are known, and findings in their files, errors first. */
export interface ExternalServices {
  auth: string;
  services: ExternalService[];
  diagnostics: Diagnostic[];
}

export interface ExternalService {
  name: string;
  transport: "http" | "stdio" | "grpc";
  baseUrl: string | null;
  language: string;
  framework: string | null;
  /** SHA-256 of the manifest. */
  digest: string;
  /** Reason why the service is never called. */
  unsupported: string | null;
  breaker: { state: "closed" | "open" | "half_open"; until?: string };
  health: { status: "healthy" | "unhealthy" | "unknown"; checkedAt?: string; message?: string };
  running: number;
  maxCalls: number;
  entries: ExternalEntry[];
}

export interface ExternalEntry {
  name: string;
  kind: "command" | "query";
  description?: string;
  policy?: string;
  needsApproval?: boolean;
  tenantScoped?: boolean;
  inputSchema?: unknown;
}

/** Finding about a manifest or a call. */
export interface Diagnostic {
  severity: string;
  code: string;
  message: string;
  file?: string;
  fixHint?: string;
}

/** Entry of an external service: `service.entry`, or a reference of a generated client. */
export type ExternalReference = string | { readonly service: string; readonly name: string };

export interface SignalSessionFilter {
  adapter?: string;
  user?: string;
  project?: string;
  /** True selects sessions that have not ended, false those that have. */
  active?: boolean;
  limit?: number;
  cursor?: string;
}

/** Sums over signals. `totalCostUsd` is without the `unpricedCount` signals, whose cost is unknown. */
export interface SignalAmounts {
  signalCount: number;
  totalTokensIn: number;
  totalTokensOut: number;
  totalCostUsd: number;
  unpricedCount: number;
}

/** Session of an AI tool that sends signals. */
export interface SignalSession extends SignalAmounts {
  sessionId: string;
  source: "agent" | "engine" | "execution";
  adapter: string;
  userId: string | null;
  projectId: string | null;
  startedAt: string;
  lastAt: string;
  endedAt: string | null;
  pausedAt: string | null;
  /** Of a session of an execution. */
  dispatchId?: string;
}

export interface SignalRecord {
  at: string;
  /** Time that the tool states. */
  ts: string;
  hook?: string | null;
  /** Of a session of the engine API. */
  type?: string | null;
  model: string | null;
  tokensIn: number | null;
  tokensOut: number | null;
  costUsd: number | null;
  errorCode: string | null;
  blocked: boolean;
}

export type SignalProperty = "user" | "project" | "adapter" | "model";

/** Totals by the values of a property, the most expensive first. */
export interface SignalTotals<By extends SignalProperty = SignalProperty> {
  totals: (SignalAmounts & { errorCount: number } & Record<By, string | null>)[];
  /** Signals that arrived until then are left out, because there are too many. */
  leftOutUntil: string | null;
}

/** Consequence of a rule that began to hold. */
export interface Intervention {
  interventionId: string;
  ruleId: string;
  severity: "info" | "warning" | "critical";
  message: string;
  sessionId: string;
  at: string;
  acknowledgedAt: string | null;
  ackDelayMs: number | null;
}

export interface InterventionFilter {
  session?: string;
  limit?: number;
  cursor?: string;
}

/** Rule or budget as in the file, and how full its windows are. */
export interface SignalRule {
  id: string;
  scope: "org" | "team" | "project" | "user" | "session";
  window: "1h" | "1d" | "7d" | "month" | "session" | "all-time";
  /** Of rules. */
  name?: string;
  enabled?: boolean;
  condition?: Record<string, Record<string, unknown>>;
  action?: "allow" | "notify" | "block";
  message?: string;
  severity?: Intervention["severity"];
  cancelRunning?: boolean;
  /** Of budgets. */
  limitUsd?: number;
  limitTokens?: number;
  warnPercent?: number;
  onExceed?: "allow" | "notify" | "block";
  /** Sum that is compared with the limit, such as `cost_usd`; `null` for a rule that has no windows. */
  field: string | null;
  /** The fullest, at most 20. */
  windows: RuleWindow[];
  /** True while windows are being counted; those are missing. */
  counting: boolean;
}

export interface RuleWindow {
  /** User, project, team or session; empty for `org`. */
  scopeValue: string;
  /** Dollars, tokens, signals or errors. */
  used: number;
  limit: number;
  left: number;
  since: string | null;
  /** End of the calendar month. */
  until: string | null;
}
