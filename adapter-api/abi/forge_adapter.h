/* The boundary between forge-bridge and an adapter library, ABI major 1. Frozen.
 *
 * A library exports one object named forge_adapter_entry_v1 of type forge_entry_v1.
 * Payloads are JSON in UTF-8; README.md of adapter-api lists the ops and their fields.
 * Functions may be called from any thread; none may unwind or block. */
#ifndef FORGE_ADAPTER_H
#define FORGE_ADAPTER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define FORGE_STATIC_ASSERT static_assert
extern "C" {
#else
#define FORGE_STATIC_ASSERT _Static_assert
#endif

#define FORGE_ABI_MAJOR 1u

/* forge_host_v1.emit */
#define FORGE_EMIT_OK 0
#define FORGE_EMIT_FULL 1   /* the event was not stored; try again later */
#define FORGE_EMIT_CLOSED 2 /* the call has ended or is unknown */

/* completions and forge_create_result.status */
#define FORGE_STATUS_OK 0
#define FORGE_STATUS_ERROR 1 /* the payload is {"code", "message", "retryable"} */

/* Borrowed for the call it is passed to. */
typedef struct forge_slice {
    const uint8_t *ptr;
    size_t len;
} forge_slice;

/* Owned. The last owner calls free(ptr, len, cap); free is NULL only when cap is 0. */
typedef struct forge_bytes {
    uint8_t *ptr;
    size_t len;
    size_t cap;
    void (*free)(uint8_t *ptr, size_t len, size_t cap);
} forge_bytes;

/* Call exactly one of the two functions, exactly once, from any thread; calling it inside start is allowed. */
typedef struct forge_completion {
    const void *ctx;
    uint64_t call;
    /* 0: accepted; -1: already answered, or unknown. The payload is consumed either way. */
    int32_t (*complete)(const void *ctx, uint64_t call, int32_t status, forge_bytes payload);
    int32_t (*abandon)(const void *ctx, uint64_t call);
} forge_completion;

/* Lives as long as the process. */
typedef struct forge_host_v1 {
    size_t size;
    const void *ctx;
    /* One event as JSON; call 0 is the instance itself. */
    int32_t (*emit)(const void *ctx, uint64_t call, forge_slice event);
    /* One log record as JSON; level 1 error, 2 warn, 3 info, 4 debug, 5 trace. */
    void (*log)(const void *ctx, uint64_t call, int32_t level, forge_slice record);
    /* A later host interface, or NULL. */
    const void *(*query)(const void *ctx, forge_slice name, uint32_t version);
} forge_host_v1;

typedef struct forge_instance_v1 {
    size_t size;
    void *data;
    /* 0: accepted, will be completed; anything else: will never be. The payload is consumed either way. */
    int32_t (*start)(void *data, uint64_t call, forge_slice op, forge_bytes payload,
                     forge_completion completion);
    /* Drops this call. 0 when it existed. */
    int32_t (*cancel)(void *data, uint64_t call);
    /* The last call into this instance. */
    void (*destroy)(void *data);
} forge_instance_v1;

/* instance is valid only when status is FORGE_STATUS_OK, error only when it is not. */
typedef struct forge_create_result {
    int32_t status;
    forge_bytes error;
    forge_instance_v1 instance;
} forge_create_result;

typedef struct forge_entry_v1 {
    uint32_t abi_major; /* FORGE_ABI_MAJOR */
    uint32_t size;      /* sizeof(forge_entry_v1) */
    forge_bytes (*manifest)(void);
    forge_create_result (*create)(const forge_host_v1 *host, forge_bytes payload);
} forge_entry_v1;

#if UINTPTR_MAX == UINT64_MAX
FORGE_STATIC_ASSERT(sizeof(forge_slice) == 16, "forge_slice");
FORGE_STATIC_ASSERT(offsetof(forge_slice, len) == 8, "forge_slice.len");
FORGE_STATIC_ASSERT(sizeof(forge_bytes) == 32, "forge_bytes");
FORGE_STATIC_ASSERT(offsetof(forge_bytes, len) == 8, "forge_bytes.len");
FORGE_STATIC_ASSERT(offsetof(forge_bytes, cap) == 16, "forge_bytes.cap");
FORGE_STATIC_ASSERT(offsetof(forge_bytes, free) == 24, "forge_bytes.free");
FORGE_STATIC_ASSERT(sizeof(forge_completion) == 32, "forge_completion");
FORGE_STATIC_ASSERT(offsetof(forge_completion, call) == 8, "forge_completion.call");
FORGE_STATIC_ASSERT(offsetof(forge_completion, complete) == 16, "forge_completion.complete");
FORGE_STATIC_ASSERT(offsetof(forge_completion, abandon) == 24, "forge_completion.abandon");
FORGE_STATIC_ASSERT(sizeof(forge_host_v1) == 40, "forge_host_v1");
FORGE_STATIC_ASSERT(offsetof(forge_host_v1, ctx) == 8, "forge_host_v1.ctx");
FORGE_STATIC_ASSERT(offsetof(forge_host_v1, emit) == 16, "forge_host_v1.emit");
FORGE_STATIC_ASSERT(offsetof(forge_host_v1, log) == 24, "forge_host_v1.log");
FORGE_STATIC_ASSERT(offsetof(forge_host_v1, query) == 32, "forge_host_v1.query");
FORGE_STATIC_ASSERT(sizeof(forge_instance_v1) == 40, "forge_instance_v1");
FORGE_STATIC_ASSERT(offsetof(forge_instance_v1, data) == 8, "forge_instance_v1.data");
FORGE_STATIC_ASSERT(offsetof(forge_instance_v1, start) == 16, "forge_instance_v1.start");
FORGE_STATIC_ASSERT(offsetof(forge_instance_v1, cancel) == 24, "forge_instance_v1.cancel");
FORGE_STATIC_ASSERT(offsetof(forge_instance_v1, destroy) == 32, "forge_instance_v1.destroy");
FORGE_STATIC_ASSERT(sizeof(forge_create_result) == 80, "forge_create_result");
FORGE_STATIC_ASSERT(offsetof(forge_create_result, error) == 8, "forge_create_result.error");
FORGE_STATIC_ASSERT(offsetof(forge_create_result, instance) == 40, "forge_create_result.instance");
FORGE_STATIC_ASSERT(sizeof(forge_entry_v1) == 24, "forge_entry_v1");
FORGE_STATIC_ASSERT(offsetof(forge_entry_v1, size) == 4, "forge_entry_v1.size");
FORGE_STATIC_ASSERT(offsetof(forge_entry_v1, manifest) == 8, "forge_entry_v1.manifest");
FORGE_STATIC_ASSERT(offsetof(forge_entry_v1, create) == 16, "forge_entry_v1.create");
#endif

#ifdef __cplusplus
}
#endif

#endif
