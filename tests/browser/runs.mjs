// Steps of console.mjs for runs: from the interview to the merge, with a failure, a review, pauses and a cancel.

import assert from "node:assert/strict";
import path from "node:path";

const task = (id, dependencies, instructions, title = `Task ${id}`, type = 2) => ({ id, title, type, dependencies, instructions });
const plan = (tasks) => JSON.stringify({ specs: { style: "Short lines." }, tasks });

/** Runs the steps: `runs` is a bridge whose runs use the echo adapter, `repository` the URL of a repository that it allows. */
export async function runSteps({ page, main, step, sure, accessible, runs, repository }) {
  const node = (name) => page.getByRole("region", { name: "Graph of the tasks" }).getByRole("link", { name });
  const interview = main.getByRole("list", { name: "Interview" });
  const say = async (text) => {
    await page.getByLabel("Message to the Captain").fill(text);
    await page.getByRole("button", { name: "Send" }).click();
  };
  const start = async (message, review) => {
    await page.goto(`${runs}/#/runs`);
    await page.getByLabel("Repository").fill(repository);
    await page.getByLabel("First message").fill(message);
    if (review) {
      await main.getByText("More", { exact: true }).click();
      await page.getByLabel("Approve the plan").check();
    }
    await page.getByRole("button", { name: "Start a run" }).click();
    await main.getByRole("region", { name: "Interview" }).waitFor();
  };
  const badge = (state) => main.locator(".title .badge").first().and(main.getByText(state, { exact: true })).waitFor();
  const photo = async (name) => {
    if (process.env.SCREENSHOTS) await page.screenshot({ path: path.join(process.env.SCREENSHOTS, name) });
  };

  await step("a run of a repository that is not allowed is refused with the field", async () => {
    await page.goto(`${runs}/#/runs`);
    await main.getByText("No runs yet.").waitFor();
    await page.getByLabel("Repository").fill("file:///etc");
    await page.getByRole("button", { name: "Start a run" }).click();
    await main.getByRole("alert").getByText("repoUrl", { exact: true }).waitFor();
  });

  let completed;
  await step("a run goes from the interview to the proved merge while it is watched", async () => {
    await start("A shop");
    await interview.getByText("What should I build?").waitFor();
    completed = page.url();
    await say(plan([
      task("schema", [], "write schema.sql item\nsleep 300\nsay one table", "Database schema"),
      task("api", ["schema"], "sleep 300\nfail-once echo_failed\nwrite api.txt items\ntool lint 20\nsay the items", "REST interface"),
      task("cart", ["schema"], "write cart.txt cart\nsleep 4000", "Cart in the browser"),
      task("docs", [], "write docs/use.md hi", "Documentation"),
    ]));
    await interview.getByText("The plan is final: 4 tasks, 1 refinery, 1 specification.").waitFor();
    await interview.getByText("create_task api").waitFor();
    await node("Database schema MERGE_READY").waitFor();
    await node("Cart in the browser RUNNING").waitFor();
    await node(/^REST interface MERGE.* attempt 2/).click();
    await main.getByLabel("Walkthrough", { exact: true }).getByText("the items").waitFor();
    await photo("run.png");
    await node("Merge the results MERGED · refinery").waitFor();
    await badge("completed");
    const proof = page.getByRole("table", { name: "Proof of refinery-final" });
    for (const branch of ["schema/1", "api/2", "cart/1", "docs/1"]) {
      await proof.getByRole("row").filter({ hasText: branch }).getByText("ancestor").waitFor();
    }
    await main.getByText("5 MERGED", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Cancel", exact: true }).waitFor({ state: "detached" });
    const boxes = await node(/./).evaluateAll((all) => all.map((one) => one.querySelector("rect").getBoundingClientRect()));
    const overlaps = (one, other) => one !== other && one.x < other.right && other.x < one.right && one.y < other.bottom && other.y < one.bottom;
    assert.ok(!boxes.some((one) => boxes.some((other) => overlaps(one, other))), "nodes overlap");
  });

  await step("a task shows its attempts, events and artifacts, and leads to its dispatches and back", async () => {
    const attempts = main.getByRole("list", { name: "Attempts" }).getByRole("listitem");
    assert.match(await attempts.nth(0).innerText(), /FAILED.*\/api\/1.*echo_failed/s);
    assert.match(await attempts.nth(1).innerText(), /MERGED.*\/api\/2/s);
    await main.getByText("Events", { exact: true }).click();
    const events = main.getByRole("list", { name: "Events of the task" });
    await events.getByText("task.progress").waitFor();
    await events.getByText("branch.pushed").waitFor();
    await main.getByRole("link", { name: "tasks/api.md" }).first().click();
    await main.getByLabel("Content of tasks/api.md").getByText("fail-once echo_failed").waitFor();
    await attempts.nth(1).getByRole("link", { name: /^dsp_/ }).click();
    await main.getByRole("list", { name: "Events of the dispatch" }).getByText("execution.completed").waitFor();
    const waterfall = main.getByRole("list", { name: "Waterfall of the dispatch" });
    await waterfall.getByText("lint", { exact: true }).waitFor();
    await photo("waterfall.png");
    await main.getByRole("link", { name: /^run_/ }).click();
    await badge("completed");
    await main.getByRole("link", { name: "waterfall of the run" }).click();
    await main.getByRole("list", { name: "Waterfall of the run" }).getByRole("link", { name: /api/ }).first().waitFor();
    await photo("run-dispatches.png");
    await main.getByRole("link", { name: "The run", exact: true }).click();
    await badge("completed");
    // A run that has ended is replayed from its log.
    await interview.getByText("A shop").waitFor();
    await page.getByRole("table", { name: "Proof of refinery-final" }).waitFor();
  });

  await step("a plan is reopened, then approved", async () => {
    await start(plan([task("a", [], "write a.txt a")]), true);
    await badge("plan review");
    await node("Task a PENDING").waitFor();
    await page.getByRole("button", { name: "Reopen the plan" }).click();
    await badge("planning");
    await say(plan([task("b", [], "write b.txt b")]));
    await badge("plan review");
    await page.getByRole("button", { name: "Approve the plan" }).click();
    await node("Task b MERGED").waitFor();
    await badge("completed");
  });

  await step("a run is paused, its agent wraps up, and it is resumed", async () => {
    await start(plan([task("long", [], "hang"), task("next", ["long"], "write next.txt n")]));
    await node("Task long RUNNING").waitFor();
    await page.getByRole("button", { name: "Pause" }).click();
    await badge("paused");
    await node("Task long MERGE_READY").waitFor();
    await node("Task next PENDING").waitFor();
    await page.getByRole("button", { name: "Resume" }).click();
    await node("Task next MERGED").waitFor();
    await badge("completed");
  });

  await step("a failed task is repeated, and the run cancelled", async () => {
    await start(plan([task("long", [], "hang"), task("bad", [], "fail echo_failed")]));
    await node("Task long RUNNING").waitFor();
    await node("Task bad FAILED · attempt 4").click();
    await page.getByRole("button", { name: "Retry" }).click();
    await node("Task bad FAILED · attempt 5").waitFor();
    await sure("Cancel", "Cancel it");
    await badge("cancelled");
  });

  await step("a change request is approved and changes the plan, another one is rejected", async () => {
    const addedNodes = [{ id: "extra", title: "Task extra", type: 1, instructions: "write extra.txt x" }];
    const request = { title: "More tests", reason: "It lacks tests.", affectedTasks: [], overlay: { addedNodes, addedEdges: [{ from: "extra", to: "b" }] } };
    const asking = plan([task("a", [], "write a.txt a"), task("merge", ["a"], `cr ${JSON.stringify(request)}`, "Merge", "refinery"), task("b", ["merge"], "write b.txt b")]);
    const card = main.getByRole("region", { name: "More tests" });
    await start(asking);
    await badge("paused");
    await card.getByLabel("Description of More tests").getByText("It lacks tests.").waitFor();
    await accessible("change requests");
    await sure("Approve More tests", "Approve it");
    await card.getByText("applied", { exact: true }).waitFor();
    await node("Task extra MERGED").waitFor();
    await interview.getByText("The plan was changed by cr-001: 1 further task.").waitFor();
    await badge("completed");
    await start(asking);
    await card.getByLabel("Reason of a rejection").fill("not now");
    await sure("Reject More tests", "Reject it");
    await card.getByText("Rejected because: not now").waitFor();
    await badge("completed");
    assert.equal(await node("Task extra").count(), 0);
  });

  await step("runs are listed by state", async () => {
    await page.goto(`${runs}/#/runs`);
    const rows = page.getByRole("table", { name: "Runs" }).getByRole("row");
    await rows.nth(3).waitFor();
    await page.getByLabel("State").selectOption("cancelled");
    await rows.nth(2).waitFor({ state: "detached" });
    await page.getByLabel("State").selectOption("failed");
    await main.getByText("No matches.").waitFor();
    await page.goto(completed.replace("#/run/", "#/runs/"));
    await main.locator(".badge").getByText("completed", { exact: true }).first().waitFor();
    await page.goto(`${runs}/#/run/run_0`);
    await main.getByRole("alert").getByText("RUN_NOT_FOUND").first().waitFor();
  });

  await step("runs are accessible, and not cut on a narrow screen", async () => {
    const places = [`${runs}/#/runs`, completed, `${completed}?task=api&artifact=dag.json`];
    for (const [width, colorScheme] of [[360, "light"], [1280, "light"], [1280, "dark"]]) {
      await page.setViewportSize({ width, height: 900 });
      await page.emulateMedia({ colorScheme });
      for (const place of places) {
        await page.goto("about:blank");
        await page.goto(place);
        await main.locator(".badge").getByText("completed", { exact: true }).first().waitFor();
        if (place !== places[0]) await page.getByRole("table", { name: "Proof of refinery-final" }).waitFor();
        const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(over <= 0, `${place} is ${over} px too wide`);
        await accessible(place);
      }
    }
    await page.emulateMedia({ colorScheme: "light" });
  });
}
