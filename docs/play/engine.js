// Loads the parts of the page and talks to the worker that runs them.
// Scripts, not fetch: a page that is opened as a file may read nothing else.
"use strict";

const probconserv = (() => {
  const parts = {}; // name -> {promise, resolve}
  const calls = new Map(); // id -> {resolve, reject}
  let worker = null;
  let last = 0;

  function part(name) {
    if (!parts[name]) {
      const entry = (parts[name] = {});
      entry.promise = new Promise((resolve, reject) => {
        entry.resolve = resolve;
        const script = document.createElement("script");
        script.src = `assets/${name}.js`;
        script.onload = () => script.remove(); // and the text with it
        script.onerror = () => {
          delete parts[name];
          reject(new Error(`assets/${name}.js could not be loaded`));
        };
        document.head.append(script);
      });
    }
    return parts[name].promise;
  }

  function unpack(name, text) {
    const letters = atob(text);
    const bytes = new Uint8Array(letters.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    parts[name].resolve(new Response(stream).arrayBuffer());
  }

  async function text(name) {
    return new TextDecoder().decode(await part(name));
  }

  function scriptUrl(source) {
    return URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  }

  function call(message, handed = []) {
    const id = ++last;
    return new Promise((resolve, reject) => {
      calls.set(id, { resolve, reject });
      worker.postMessage({ id, ...message }, handed);
    });
  }

  async function start() {
    const needed = ["worker", "ort", "runtime"].map(part);
    const [source, library, runtime] = await Promise.all(needed);
    worker = new Worker(scriptUrl(source));
    worker.onmessage = ({ data }) => {
      const { resolve, reject } = calls.get(data.id);
      calls.delete(data.id);
      data.error ? reject(new Error(data.error)) : resolve(data);
    };
    await call({ do: "start", library, runtime }, [library, runtime]);
  }

  const opened = {};
  function open(name) {
    const level = name === "step2" ? "disabled" : "basic"; // that graph is small and ready to run
    opened[name] ??= part(name).then((graph) => call({ do: "open", name, graph, level }));
    opened[name].catch(() => delete opened[name]); // so that it can be tried again
    return opened[name];
  }

  async function run(name, inputs) {
    await open(name);
    return call({ do: "run", name, inputs });
  }

  return { unpack, part, text, start, open, run };
})();
