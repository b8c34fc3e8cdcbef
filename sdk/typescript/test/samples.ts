// Samples of the public design of runs as they stand there; package.test.ts compiles them with the packed client.
import { ForgeSDK } from '@forge/sdk';

const forge = new ForgeSDK('http://localhost:3000/api/v1');

const run = await forge.createRun('https://github.com/org/repo', {
  model: 'claude-sonnet-4-20250514',
});

for await (const event of forge.streamEvents(run.runId)) {
  switch (event.type) {
    case 'captain.message':
      console.log(`Captain: ${event.data.content}`);
      break;
    case 'task.started':
      console.log(`Task ${event.data.taskId} started on branch ${event.data.branch}`);
      break;
    case 'task.completed':
      console.log(`Task ${event.data.taskId} done`);
      break;
    case 'run.completed':
      console.log(`Run finished: ${event.data.totalCompleted} tasks completed`);
      break;
  }
}

{
const run = await forge.createRun('https://github.com/org/repo');

// Send a message to Captain
await forge.sendCaptainMessage(run.runId, 'Build a REST API with JWT auth');

// Listen for Captain's response on the event stream
for await (const event of forge.streamEvents(run.runId)) {
  if (event.type === 'captain.message') {
    console.log(event.data.content);
  }
  if (event.type === 'plan.finalized') {
    break; // planning done, execution begins
  }
}
}

let lastEventId: string | undefined;

async function listen(runId: string) {
  for await (const event of forge.streamEvents(runId, { after: lastEventId })) {
    lastEventId = event.eventId;
    handleEvent(event);
  }
  // Connection dropped — reconnect
  listen(runId);
}

{
await forge.pauseRun(runId);

const tasks = await forge.listTasks(runId);
// @ts-expect-error -- 'executing' is a state of runs; that of a task is 'RUNNING'.
const executing = tasks.filter(t => t.status === 'executing');
console.log(`${executing.length} tasks wrapping up...`);

const crs = await forge.listChangeRequests(runId);
for (const cr of crs.filter(c => c.status === 'pending')) {
  console.log(`Pending CR: ${cr.title}`);
  await forge.approveChangeRequest(runId, cr.crId);
}

await forge.resumeRun(runId);
}

try {
  await forge.pauseRun('run_nonexistent');
} catch (err) {
  if (err instanceof ForgeAPIError && err.code === 'RUN_NOT_FOUND') {
    // handle gracefully
  }
}

// What the samples leave out, and what they rely on.
import { ForgeAPIError, type ForgeEvent } from '@forge/sdk';
import type { ChangeRequest, EventType, ForgeError, Run, RunState, TaskDetail, TaskSummary } from '@forge/sdk/runs';

// Each type that the design names, with a member of it.
export type Named = [
  ChangeRequest['impact'], ForgeError['code'], Run['runId'], RunState['dag'], TaskDetail['artifacts'], TaskSummary['dependencies'],
];
export const finished: EventType = 'run.completed';
// @ts-expect-error -- there is no such type.
export const misspelt: EventType = 'run.complete';

declare const runId: string;

function handleEvent(event: ForgeEvent) {
  const seconds: number | undefined = event.type === 'run.completed' ? event.data.duration / 1000 : undefined;
  // @ts-expect-error -- there is no such type.
  if (event.type === 'run.complete') listen(`${seconds}`);
  // @ts-expect-error -- the data of this type has no such member.
  if (event.type === 'run.paused') console.log(event.data.resaon);
}
