// Steps of console.mjs for the pages of a runtime: agents, skills, models and security.

import assert from "node:assert/strict";
import path from "node:path";

/** Runs the steps: `url` is a bridge whose adapters manage nothing, `managing` one with the adapters echo and manager. */
export async function runtimeSteps({ page, main, step, sure, holds, accessible, url, managing }) {
  await step("a bridge whose adapters manage no runtime says so", async () => {
    for (const place of ["agents", "skills", "models"]) {
      await page.goto(`${url}/#/${place}`);
      await main.getByText(`No loaded adapter manages ${place} of a runtime.`).waitFor();
    }
  });

  await step("an agent is created, changed and refused with the reason", async () => {
    await page.goto(`${managing}/#/agents`);
    await main.getByText("The runtime has no agents.").waitFor();
    assert.deepEqual(await page.getByRole("combobox", { name: "Adapter" }).locator("option").allInnerTexts(), ["manager"]);
    await main.getByText("New agent", { exact: true }).click();
    await page.getByLabel("Id", { exact: true }).fill("taken");
    await sure("Create the agent", "Create it");
    await main.getByRole("alert").getByText("CONFLICT").waitFor();
    await page.getByLabel("Id", { exact: true }).fill("ada/1");
    await page.getByLabel("Instructions").fill("You are Ada.");
    await sure("Create the agent", "Create it");
    await main.getByText("Created ada/1.").waitFor();
    await page.getByRole("table", { name: "Agents" }).getByRole("link", { name: "ada/1" }).click();
    await main.getByRole("heading", { level: 1, name: "Agent ada/1" }).waitFor();
    await holds("Instructions", "You are Ada.");
    assert.equal(await page.getByRole("button", { name: "Save ada/1" }).isDisabled(), true);
    await page.getByLabel("Model").fill("m-1");
    await page.getByRole("button", { name: "Save ada/1" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Not now" }).click();
    assert.equal((await (await fetch(`${managing}/api/v2/agents/ada%2F1`)).json()).model, undefined);
    await sure("Save ada/1", "Save it");
    await main.getByText("Saved.", { exact: true }).waitFor();
    assert.deepEqual(await (await fetch(`${managing}/api/v2/agents/ada%2F1`)).json(), { agentId: "ada/1", model: "m-1", systemPrompt: "You are Ada." });
  });

  await step("a file of an agent is written, opened and removed", async () => {
    await main.getByText("The workspace has no files.").waitFor();
    await page.getByLabel("New file").fill("notes/a b.md");
    await page.getByRole("button", { name: "Edit", exact: true }).click();
    await page.getByLabel("Content of notes/a b.md").fill("hello");
    await page.getByRole("button", { name: "Discard changes" }).waitFor();
    await sure("Save notes/a b.md", "Save it");
    await main.getByText("Saved notes/a b.md.").waitFor();
    await main.getByRole("list", { name: "Files" }).getByText("5 bytes").waitFor();
    await page.getByRole("button", { name: "Close", exact: true }).click();
    await page.getByRole("button", { name: "Open notes/a b.md" }).click();
    await holds("Content of notes/a b.md", "hello");
    await sure("Remove notes/a b.md", "Remove it");
    await main.getByText("The workspace has no files.").waitFor();
    await page.getByLabel("Content of notes/a b.md").waitFor({ state: "detached" });
  });

  await step("channel bindings are replaced, and refused unless they are complete", async () => {
    const bindings = page.getByLabel("Bindings, as a JSON array");
    await bindings.fill('[{"team": "t"}]');
    await main.getByText("Not a JSON array of objects with a channel.").waitFor();
    assert.equal(await page.getByRole("button", { name: "Save the bindings" }).isDisabled(), true);
    await bindings.fill('[{"channel": "slack", "team": "t"}]');
    await sure("Save the bindings", "Replace them");
    await main.getByText("Saved the bindings.").waitFor();
    assert.deepEqual(await (await fetch(`${managing}/api/v2/agents/ada%2F1/bindings`)).json(), [{ channel: "slack", team: "t" }]);
  });

  await step("a method that the adapter does not have is not shown, and is no error", async () => {
    const answer = { status: 404, json: { error: "the adapter does not support this", code: "NOT_SUPPORTED" } };
    await page.route("**/bindings?*", (route) => route.fulfill(answer));
    await page.route("**/agents/ada%2F1?*", (route) => (route.request().method() === "DELETE" ? route.fulfill(answer) : route.fallback()));
    await Promise.all([page.waitForResponse("**/bindings?*"), page.reload()]);
    await holds("Model", "m-1");
    await page.getByRole("heading", { name: "Files" }).waitFor();
    assert.equal(await page.getByRole("heading", { name: "Channel bindings" }).count(), 0);
    await sure("Remove ada/1", "Remove it");
    await main.getByText("The adapter manager does not support this. Nothing was changed.").waitFor();
    await page.getByRole("button", { name: "Remove ada/1" }).waitFor({ state: "detached" });
    assert.equal(await main.getByRole("alert").count(), 0);
    await page.unroute("**/bindings?*");
    await page.unroute("**/agents/ada%2F1?*");
  });

  await step("a skill is enabled, and what it misses is installed", async () => {
    const headers = { "Content-Type": "application/json" };
    const skill = { skillKey: "search", name: "Search", description: "Finds text", content: "# Search", enabled: false };
    await fetch(`${managing}/api/v2/skills`, { method: "POST", headers, body: JSON.stringify(skill) });
    await page.getByRole("navigation", { name: "Runtime" }).getByRole("link", { name: "Skills" }).click();
    const row = page.getByRole("list", { name: "Skills" }).getByRole("listitem");
    await row.getByText("Missing: ripgrep").waitFor();
    await row.getByText("not ready").waitFor();
    await sure("Enable search", "Enable it");
    await row.getByText("enabled", { exact: true }).waitFor();
    assert.deepEqual(await (await fetch(`${managing}/api/v2/skills/search`)).json(), { ...skill, enabled: true });
    await sure("Install dependencies of search", "Install them");
    await row.getByText("Installed ripgrep.").waitFor();
    await row.getByText("ready", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Install dependencies of search" }).waitFor({ state: "detached" });
  });

  await step("models and the security posture are shown, and the configuration is reloaded", async () => {
    await page.getByRole("navigation", { name: "Runtime" }).getByRole("link", { name: "Models" }).click();
    await page.getByRole("table", { name: "Models" }).getByText("m-1").waitFor();
    await main.getByText("sandboxed", { exact: true }).waitFor();
    await page.getByRole("list", { name: "Findings" }).getByText("everything is in memory").waitFor();
    await sure("Reload configuration", "Reload it");
    await main.getByText("Reloaded; settings changed. the port needs a restart.").waitFor();
  });

  await step("pages of a runtime are accessible, and nothing is cut on a narrow screen", async () => {
    for (const [place, width, scheme] of ["agents", "agents/ada%2F1", "skills", "models"].flatMap((place) => [[place, 1280, "light"], [place, 360, "dark"]])) {
      await page.setViewportSize({ width, height: 900 });
      await page.emulateMedia({ colorScheme: scheme });
      await page.goto(`${managing}/#/${place}`);
      await main.getByRole("heading", { level: 1 }).waitFor();
      await page.locator(".skeleton").first().waitFor({ state: "detached" });
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${place} is ${over} px too wide at ${width} px`);
      await accessible(`${place} ${scheme}`);
      if (process.env.SCREENSHOTS) await page.screenshot({ path: path.join(process.env.SCREENSHOTS, `${place.replace("/ada%2F1", "-one")}-${scheme}.png`), fullPage: true });
    }
    await page.setViewportSize({ width: 1280, height: 900 });
    await page.emulateMedia({ colorScheme: null });
    await page.goto(`${managing}/#/agents/ada%2F1`);
    // The page offers a method again after a reload.
    await page.reload();
    await sure("Remove ada/1", "Remove it");
    await main.getByText("The runtime has no agents.").waitFor();
    await page.goto(url);
  });
}
