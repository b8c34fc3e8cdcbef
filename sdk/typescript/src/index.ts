export { Bridge, type DispatchFilter, type DeliveryFilter, type ReplayFilter } from "./client.js";
export { BridgeError } from "./errors.js";
export { ForgeAPIError, ForgeSDK } from "./forge.js";
export * from "./management.js";
export { type BridgeOptions } from "./request.js";
export * from "./runs.js";
export { type EventFilter, type StreamOptions } from "./stream.js";
export * from "./wire.js";
