// The routes for runs alone, with the names of their public design: there, `EventType` is that of the events of a run.
export type { RunEventFilter, RunFilter, RunOptions } from "./filters.js";
export { ForgeAPIError, type ForgeError, ForgeSDK, type Run, type RunStreamOptions, type TaskDetail, type TaskSummary } from "./forge.js";
export type { AgentType, ChangeRequest, ForgeEvent, ForgeEventData, RunState, RunStatus, RunSummary, RunVerification, TaskStatus } from "./wire/index.js";
export type { ForgeEventType as EventType } from "./wire/index.js";
