// Requests to the server that this page came from.

import { h } from "./dom.js";
import { keyFor } from "./keys.js";
import { EventParser } from "./sse.js";

const BASE = new URL("../", document.baseURI); // with the prefix that a proxy may have put in front

/** What the server refused, or that it cannot be reached (status 0). `requestId` names its record. */
export class ApiError extends Error {
  constructor(status, error, requestId) {
    super(error.message ?? `The server answered ${status}`);
    this.status = status;
    this.code = error.code ?? null;
    this.param = error.param ?? null;
    this.retryAfter = error.retry_after_ms ?? null;
    this.requestId = requestId;
  }
}

export function address(path) {
  return new URL(path, BASE).href;
}

/** JSON of a route. `admin`: with the admin key. Raises ApiError. */
export async function get(path, { admin = false, signal } = {}) {
  return (await asked(path, { headers: headers(admin), signal })).json();
}

export async function post(path, body, { admin = false, signal } = {}) {
  return (await asked(path, posted(body, admin, signal))).json();
}

/** A form of texts and files. */
export async function upload(path, fields, { signal } = {}) {
  const body = new FormData();
  for (const [name, value] of Object.entries(fields)) body.append(name, value);
  return (await asked(path, { method: "POST", body, headers: headers(false), signal })).json();
}

/** Hands what a route answers to the user as a file. */
export async function download(path, name) {
  const content = URL.createObjectURL(await (await asked(path, { headers: headers(false) })).blob());
  h("a", { href: content, download: name }).click();
  URL.revokeObjectURL(content);
}

/** A generating route's events, parsed, until [DONE]. `began` gets the answer's headers. Raises ApiError. */
export async function* stream(path, body, { signal, began }) {
  const response = await asked(path, posted(body, false, signal));
  began(response.headers);
  const requestId = response.headers.get("x-request-id");
  for await (const data of dataOf(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(200, event.error, requestId);
    yield event;
  }
  throw new ApiError(0, { message: "The connection ended before the answer did", code: "cut" }, requestId);
}

async function* dataOf(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  for (;;) {
    const { done, value } = await read(reader);
    if (done) return;
    yield* parser.feed(decoder.decode(value, { stream: true }));
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    throw unreachable(error, "The connection broke before the answer ended");
  }
}

async function asked(path, options) {
  let response;
  try {
    response = await fetch(address(path), { ...options, cache: "no-store", credentials: "omit", redirect: "error" });
  } catch (error) {
    throw unreachable(error, "The server cannot be reached");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, body.error ?? {}, response.headers.get("x-request-id"));
}

function unreachable(error, message) {
  return error.name === "AbortError" ? error : new ApiError(0, { message }, null);
}

function posted(body, admin, signal) {
  const type = { "content-type": "application/json" };
  return { method: "POST", body: JSON.stringify(body), headers: { ...headers(admin), ...type }, signal };
}

function headers(admin) {
  const key = keyFor(admin);
  return key ? { authorization: `Bearer ${key}` } : {};
}
