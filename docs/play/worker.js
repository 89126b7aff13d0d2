// Runs the networks and Step 2, beside the page, so that dragging stays smooth.
// One message in, one message out: {id, do, ...} and {id, ...} or {id, error}.

let ort;
const sessions = {};

const actions = {
  async start({ library, runtime }) {
    const url = URL.createObjectURL(new Blob([library], { type: "text/javascript" }));
    ort = await import(url);
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmBinary = runtime;
    ort.env.logLevel = "error";
  },

  async open({ name, graph, level }) {
    const options = { executionProviders: ["wasm"], graphOptimizationLevel: level };
    sessions[name] = await ort.InferenceSession.create(graph, options);
  },

  async run({ name, inputs }) {
    const feeds = {};
    for (const [key, { data, dims }] of Object.entries(inputs)) {
      const type = data instanceof Float64Array ? "float64" : "float32";
      feeds[key] = new ort.Tensor(type, data, dims);
    }
    const started = performance.now();
    const found = await sessions[name].run(feeds);
    const results = {};
    for (const [key, tensor] of Object.entries(found)) {
      results[key] = { data: tensor.data, dims: tensor.dims };
    }
    return { results, ms: performance.now() - started };
  },
};

self.onmessage = async ({ data }) => {
  try {
    self.postMessage({ id: data.id, ...(await actions[data.do](data)) });
  } catch (error) {
    self.postMessage({ id: data.id, error: String(error) });
  }
};
