/* An adapter for forge-bridge in C: one entry, forge_adapter.h, no other dependencies. README.md has the command that
 * builds it.
 *
 * It streams the words of the message, one every `pause` milliseconds (a setting; default 0). Each execution
 * has its own thread; a cancel sets a flag that the thread polls. */
#include "forge_adapter.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char MANIFEST[] =
    "{\"name\":\"c-echo\",\"version\":\"1.0.0\",\"provider\":\"c-echo\",\"schema\":{\"min\":1,\"max\":1},"
    "\"interfaces\":[\"execution@1\"]}";
static const char PROFILE[] =
    "{\"capabilities\":[\"streaming\"],\"nativeTools\":[],\"maxConcurrent\":8,"
    "\"outputStrategies\":[\"stream\"],\"costTier\":\"low\",\"latencyProfile\":\"fast\"}";

typedef struct run {
    struct run *next;
    struct adapter *adapter;
    forge_completion completion;
    char *request, *task;
    atomic_bool stop;
} run;

typedef struct adapter {
    const forge_host_v1 *host;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    run *runs;
    int pause_ms;
    bool ready, closing;
} adapter;

/* Constant texts are never freed, but bytes with a capacity must have a free function. */
static void keep(uint8_t *ptr, size_t len, size_t cap) { (void)ptr, (void)len, (void)cap; }

static void free_bytes(uint8_t *ptr, size_t len, size_t cap) {
    (void)len, (void)cap;
    free(ptr);
}

static forge_bytes constant(const char *text) {
    return (forge_bytes){(uint8_t *)(uintptr_t)text, strlen(text), strlen(text), keep};
}

static void answer(forge_completion to, const char *text) {
    to.complete(to.ctx, to.call, FORGE_STATUS_OK, constant(text));
}

static void fail(forge_completion to, const char *error) {
    to.complete(to.ctx, to.call, FORGE_STATUS_ERROR, constant(error));
}

/* The raw text of a JSON string member, with its escapes; NULL if absent. Sufficient for an example: a real
 * adapter uses a JSON library. */
static char *member(const char *json, const char *name) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\":\"", name);
    const char *start = strstr(json, key);
    if (!start) return NULL;
    start += strlen(key);
    const char *end = start;
    while (*end && *end != '"') end += *end == '\\' && end[1] ? 2 : 1;
    return strndup(start, (size_t)(end - start));
}

/* Emits one word and retries while the queue is full; false when the bridge no longer accepts events. */
static bool emit(run *r, const char *word) {
    char event[1024];
    const forge_host_v1 *host = r->adapter->host;
    snprintf(event, sizeof event, "{\"type\":\"assistant.text\",\"data\":{\"delta\":\"%.900s \"}}", word);
    int taken;
    while ((taken = host->emit(host->ctx, r->completion.call,
                               (forge_slice){(const uint8_t *)event, strlen(event)})) == FORGE_EMIT_FULL)
        usleep(2000);
    return taken == FORGE_EMIT_OK;
}

static void *execute(void *argument) {
    run *r = argument;
    adapter *self = r->adapter;
    char *message = member(r->request, "message"), *rest = NULL;
    size_t size = message ? strlen(message) + 64 : 64;
    char *result = calloc(1, size);
    if (message) { /* Call your runtime here. */
        snprintf(result, size, "{\"status\":\"ok\",\"output\":\"%s\"}", message);
        for (char *word = strtok_r(message, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
            for (int ms = 0; ms < self->pause_ms && !atomic_load(&r->stop); ms++) usleep(1000);
            if (atomic_load(&r->stop) || !emit(r, word)) break;
        }
    }
    pthread_mutex_lock(&self->lock);
    for (run **at = &self->runs; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            break;
        }
    if (!self->runs) pthread_cond_broadcast(&self->idle);
    pthread_mutex_unlock(&self->lock);
    /* The instance can be destroyed from here on; the completion belongs to the bridge and stays valid. */
    if (!message) {
        free(result);
        fail(r->completion, "{\"code\":\"invalid_request\",\"message\":\"message: a text is required\"}");
    } else if (atomic_load(&r->stop)) {
        free(result);
        fail(r->completion, "{\"code\":\"cancelled\",\"message\":\"cancelled\"}");
    } else {
        forge_bytes bytes = {(uint8_t *)result, strlen(result), size, free_bytes};
        r->completion.complete(r->completion.ctx, r->completion.call, FORGE_STATUS_OK, bytes);
    }
    free(message);
    free(r->request);
    free(r->task);
    free(r);
    return NULL;
}

static void begin(adapter *self, char *request, forge_completion done) {
    run *r = calloc(1, sizeof *r);
    pthread_t thread;
    r->adapter = self, r->completion = done, r->request = request, r->task = member(request, "taskId");
    pthread_mutex_lock(&self->lock);
    r->next = self->runs, self->runs = r;
    if (pthread_create(&thread, NULL, execute, r) == 0) {
        pthread_detach(thread);
        pthread_mutex_unlock(&self->lock);
        return;
    }
    self->runs = r->next;
    pthread_mutex_unlock(&self->lock);
    fail(done, "{\"code\":\"internal\",\"message\":\"no thread\",\"retryable\":true}");
    free(r->request), free(r->task), free(r);
}

/* Stops the runs of a task, or the run of a call, or all runs; returns their number. */
static int stop(adapter *self, const char *task, uint64_t call) {
    int found = 0;
    pthread_mutex_lock(&self->lock);
    for (run *r = self->runs; r; r = r->next)
        if ((!task && !call) || (task && r->task && strcmp(task, r->task) == 0) ||
            (call && r->completion.call == call))
            atomic_store(&r->stop, true), found++;
    pthread_mutex_unlock(&self->lock);
    return found;
}

#define OP(name) (op.len == strlen(name) && memcmp(op.ptr, name, op.len) == 0)

static bool known(forge_slice op) {
    return OP("health") || OP("capabilities") || OP("execute") || OP("cancel") || OP("events.start") ||
           OP("events.stop") || OP("shutdown");
}

/* Called from one thread of the bridge only. */
static int32_t start(void *data, uint64_t call, forge_slice op, forge_bytes payload, forge_completion done) {
    adapter *self = data;
    (void)call;
    char *request = calloc(1, payload.len + 1);
    if (payload.len) memcpy(request, payload.ptr, payload.len);
    if (payload.free) payload.free(payload.ptr, payload.len, payload.cap);
    if (OP("initialize") && request[0] != '{') {
        fail(done, "{\"code\":\"invalid_config\",\"message\":\"the configuration is not an object\"}");
    } else if (OP("initialize")) {
        const char *pause = strstr(request, "\"pause\":");
        self->pause_ms = pause ? atoi(pause + strlen("\"pause\":")) : 0;
        const char *record = "{\"level\":\"info\",\"message\":\"c-echo initialized\"}";
        self->host->log(self->host->ctx, 0, 3, (forge_slice){(const uint8_t *)record, strlen(record)});
        self->ready = true;
        answer(done, "null");
    } else if (!self->ready && known(op)) {
        fail(done, "{\"code\":\"invalid_request\",\"message\":\"the adapter is not initialized\"}");
    } else if (OP("execute") && self->closing) {
        fail(done, "{\"code\":\"adapter_unavailable\",\"message\":\"shutting down\",\"retryable\":true}");
    } else if (OP("execute")) {
        begin(self, request, done);
        return 0;
    } else if (OP("health")) {
        answer(done, "{\"status\":\"healthy\"}");
    } else if (OP("capabilities")) {
        answer(done, PROFILE);
    } else if (OP("cancel")) {
        char *task = member(request, "taskId");
        if (!task)
            fail(done, "{\"code\":\"invalid_request\",\"message\":\"taskId is required\"}");
        else
            answer(done, stop(self, task, 0) ? "{\"cancelled\":true}" : "{\"cancelled\":false}");
        free(task);
    } else if (OP("events.start") || OP("events.stop")) {
        answer(done, "null");
    } else if (OP("shutdown")) {
        self->closing = true;
        stop(self, NULL, 0);
        answer(done, "null");
    } else {
        fail(done, "{\"code\":\"unsupported_op\",\"message\":\"not supported\"}");
    }
    free(request);
    return 0;
}

static int32_t cancel(void *data, uint64_t call) { return stop(data, NULL, call) ? 0 : -1; }

static void destroy(void *data) {
    adapter *self = data;
    stop(self, NULL, 0);
    pthread_mutex_lock(&self->lock);
    while (self->runs) pthread_cond_wait(&self->idle, &self->lock);
    pthread_mutex_unlock(&self->lock);
    free(self);
}

static forge_bytes manifest(void) { return constant(MANIFEST); }

static forge_create_result create(const forge_host_v1 *host, forge_bytes payload) {
    if (payload.free) payload.free(payload.ptr, payload.len, payload.cap);
    adapter *self = calloc(1, sizeof *self);
    self->host = host;
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->idle, NULL);
    return (forge_create_result){
        .status = FORGE_STATUS_OK,
        .instance = {sizeof(forge_instance_v1), self, start, cancel, destroy}};
}

const forge_entry_v1 forge_adapter_entry_v1 = {FORGE_ABI_MAJOR, sizeof(forge_entry_v1), manifest, create};
