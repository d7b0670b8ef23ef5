// Questions to the server. Of each kind only the newest counts: the one before is given up.

export class Refused extends Error {
  constructor(status, error) {
    super(error.message);
    this.kind = error.kind;
    this.status = status;
  }
}

const running = new Map();

export function forget(kind) {
  running.get(kind)?.abort();
  running.delete(kind);
}

export async function about() {
  return (await checked(await fetch("/api/about"))).json();
}

export async function ask(kind, body) {
  return (await post(kind, body)).json();
}

export async function page(body) {
  return (await post("page", body)).text();
}

// The lines of an answer as they come.
export async function* lines(kind, body) {
  const response = await post(kind, body);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}

async function post(kind, body) {
  forget(kind);
  const giver = new AbortController();
  running.set(kind, giver);
  const options = {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal: giver.signal,
  };
  for (let wait = 250; ; wait *= 2) {
    const response = await fetch(`/api/${kind}`, options);
    if (response.status !== 503 || wait > 4000) return checked(response);
    await new Promise((done) => setTimeout(done, wait));
    giver.signal.throwIfAborted();
  }
}

async function checked(response) {
  if (response.ok) return response;
  let error = { kind: "server", message: `the server answered ${response.status}.` };
  try {
    error = (await response.json()).error;
  } catch {
    // not ours: the words above must do
  }
  throw new Refused(response.status, error);
}

export const given_up = (error) => error.name === "AbortError";
