import { expect, test } from "vitest";
import { WebhookError, verifyWebhook } from "../src/index.js";

// The example of the reference libraries of Standard Webhooks: known id, time, body and signature.
const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const body = '{"test": 2432232314}';
const headers = {
  "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
  "webhook-timestamp": "1614265330",
  "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
};
const other = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const now = new Date(1614265330_000);
const late = (seconds: number) => new Date(now.getTime() + seconds * 1000);

test.each([
  ["text", body, headers, secret],
  ["bytes", new TextEncoder().encode(body), headers, secret],
  ["a Node buffer", Buffer.from(body), headers, secret],
  ["Headers", body, new Headers(headers), secret],
  ["names as they were sent", body, { "Webhook-Id": headers["webhook-id"], "WEBHOOK-TIMESTAMP": "1614265330", "Webhook-Signature": [headers["webhook-signature"]] }, secret],
  ["a rotation at the bridge", body, { ...headers, "webhook-signature": `v1,AAAA v1a,AAAA v1,é v2,x ${headers["webhook-signature"]}` }, secret],
  ["a rotation at the receiver", body, headers, [other, secret]],
  ["a secret without its prefix", body, headers, secret.slice(6)],
])("a signed callback is accepted: %s", async (_, body, headers, secret) => {
  expect(await verifyWebhook(body, headers, secret, { now })).toEqual({ test: 2432232314 });
});

test.each([
  ["another body", `${body} `, headers, secret, now, "no signature fits"],
  ["another secret", body, headers, other, now, "no signature fits"],
  ["another id", body, { ...headers, "webhook-id": "msg_2" }, secret, now, "no signature fits"],
  ["another time", body, { ...headers, "webhook-timestamp": "1614265331" }, secret, now, "no signature fits"],
  ["another version", body, { ...headers, "webhook-signature": headers["webhook-signature"].replace("v1", "v2") }, secret, now, "no signature fits"],
  ["no signature", body, { ...headers, "webhook-signature": undefined }, secret, now, "no signature fits"],
  ["no secret", body, headers, [], now, "no signature fits"],
  ["an old one", body, headers, secret, late(301), "too old or in the future"],
  ["one of the future", body, headers, secret, late(-301), "too old or in the future"],
  ["no time", body, { ...headers, "webhook-timestamp": "now" }, secret, now, "missing or malformed"],
  ["no id", body, { ...headers, "webhook-id": "" }, secret, now, "missing or malformed"],
])("a callback is refused: %s", async (_, body, headers, secret, now, reason) => {
  const refused = await verifyWebhook(body, headers, secret, { now }).catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(WebhookError);
  expect(`${refused}`).toContain(reason);
});

test("the tolerance can be chosen, and a secret that is none is an error of the receiver", async () => {
  expect(await verifyWebhook(body, headers, secret, { now: late(3600), toleranceSeconds: 3600 })).toBeTruthy();
  await expect(verifyWebhook(body, headers, "whsec_?", { now })).rejects.toBeInstanceOf(TypeError);
});
