// Requests to the server. In each slot only the newest matters: a new one cancels the one before.

export class ServerError extends Error {
  constructor(status, { kind, message }) {
    super(message);
    this.kind = kind;
    this.status = status;
  }
}

const running = new Map(); // slot → AbortController
const [FIRST_RETRY, LAST_RETRY] = [250, 4000]; // milliseconds to wait while the server is busy

export const isCancelled = (error) => error.name === "AbortError";

export function cancel(slot) {
  running.get(slot)?.abort();
  running.delete(slot);
}

export async function fetchAbout() {
  return (await checkStatus(await fetch("/api/about"))).json();
}

export async function fetchJson(kind, body, slot = kind) {
  return (await post(kind, body, slot)).json();
}

export async function fetchHtml(body) {
  return (await post("html", body)).text();
}

// The lines of a response as they arrive, each parsed from JSON.
export async function* fetchLines(kind, body, slot = kind) {
  const response = await post(kind, body, slot);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let incomplete = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (incomplete + value).split("\n");
    incomplete = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

async function post(kind, body, slot = kind) {
  cancel(slot);
  const controller = new AbortController();
  running.set(slot, controller);
  const options = {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal: controller.signal,
  };
  for (let wait = FIRST_RETRY; ; wait *= 2) {
    const response = await fetch(`/api/${kind}`, options).catch((error) => {
      throw isCancelled(error) ? error : new ServerError(0, { kind: "network", message: "The server does not respond. Is it still running?" });
    });
    if (response.status !== 503 || wait > LAST_RETRY) return checkStatus(response);
    await new Promise((resolve) => setTimeout(resolve, wait));
    controller.signal.throwIfAborted();
  }
}

async function checkStatus(response) {
  if (response.ok) return response;
  let error = { kind: "server", message: `the server responded with status ${response.status}.` };
  try {
    error = (await response.json()).error;
  } catch {
    // not a response of this server: the status must do
  }
  throw new ServerError(response.status, error);
}
