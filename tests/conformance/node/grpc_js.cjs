// @grpc/grpc-js, run by test_node_clients.py: node grpc_js.cjs SCENARIO JSON; what was found goes out as JSON.
"use strict";

process.env.GRPC_TRACE = "keepalive";
process.env.GRPC_VERBOSITY = "DEBUG";

const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const loaded = loader.loadFileDescriptorSetFromBuffer(fs.readFileSync(process.env.DESCRIPTORS), {
  longs: Number,
  enums: String,
  bytes: Buffer,
  defaults: true,
});
let onLog = () => {};
const listen = (...words) => onLog(words.join(" "));
grpc.setLogger({ error: listen, info: listen, debug: listen });

const { tensorflow, inference, grpc: own } = grpc.loadPackageDefinition(loaded);
const [, , scenario, text] = process.argv;
const given = JSON.parse(text);
const soon = (seconds = 60) => ({ deadline: Date.now() + seconds * 1000 });

function connect(Service, options = {}) {
  const credentials = given.root ? grpc.credentials.createSsl(fs.readFileSync(given.root)) : grpc.credentials.createInsecure();
  return new Service(given.target, credentials, { "grpc.max_receive_message_length": -1, ...options });
}

const prediction = (options) => connect(tensorflow.serving.PredictionService, options);
const v2 = (options) => connect(inference.GRPCInferenceService, options);
const health = (options) => connect(own.health.v1.Health, options);

// Resolves when so many pings have been answered.
function pongs(count) {
  return new Promise((resolve) => {
    onLog = (line) => line.includes("Received ping response") && --count === 0 && resolve();
  });
}

// Of a call: its answer or its error, and what came beside them.
function ask(client, method, request, { metadata = new grpc.Metadata(), options = soon(), begun = () => {} } = {}) {
  return new Promise((resolve) => {
    const found = {};
    const call = client[method](request, metadata, options, (error, answer) => {
      found.code = error ? error.code : 0;
      found.details = error ? error.details : "";
      found.answer = answer;
    });
    call.on("metadata", (first) => (found.headers = first.getMap()));
    call.on("status", (status) => resolve({ ...found, trailers: status.metadata.getMap() }));
    begun(call);
  });
}

// Maps are lists of pairs where protos come as descriptors.
function sums(first) {
  const tensor = (values) => ({ dtype: "DT_FLOAT", tensor_shape: { dim: [{ size: 1 }, { size: 4 }] }, float_val: values });
  return { model_spec: { name: "sums", version: { value: 1 } }, inputs: [{ key: "a", value: tensor(first) }, { key: "b", value: tensor([1, 1, 1, 1]) }] };
}

function raw(model, name, datatype, shape, content) {
  return { model_name: model, inputs: [{ name, datatype, shape }], raw_input_contents: [content] };
}

function plain(count) {
  return raw("plain", "x", "INT16", [1, count], Buffer.from(Int16Array.from({ length: count }, (_, index) => index).buffer));
}

function repeat(...values) {
  return raw("repeat", "IN", "INT32", [values.length], Buffer.from(Int32Array.from(values).buffer));
}

const gate = () => raw("gate", "x", "FP32", [1, 1], Buffer.from(Float32Array.of(1).buffer));

async function add(client, first = [1, 2, 3, 4], how) {
  const found = await ask(client, "predict", sums(first), how);
  return found.code ? found : found.answer.outputs.find(({ key }) => key === "sum").value.float_val;
}

function streamEnd(stream) {
  return new Promise((resolve) => {
    stream.on("error", () => {});
    stream.on("status", (status) => resolve(status.code));
  });
}

const scenarios = {
  predict: async () => add(prediction()),

  async errors() {
    const client = prediction();
    const unknown = await ask(client, "predict", { model_spec: { name: given.name } });
    const nameless = await ask(client, "predict", {});
    const Nonsense = grpc.makeGenericClientConstructor(
      { nonsense: { ...loaded["tensorflow.serving.PredictionService"].Predict, path: "/tensorflow.serving.PredictionService/No" } },
      "Nonsense",
    );
    const nonsense = await ask(connect(Nonsense), "nonsense", sums([1, 2, 3, 4]));
    return { unknown, nameless, nonsense, after: await add(client) };
  },

  async metadata() {
    const metadata = new grpc.Metadata();
    metadata.set("x-plain", "some text, with = and ;");
    metadata.add("x-twice", "first");
    metadata.add("x-twice", "second");
    metadata.set("x-empty", "");
    metadata.set("x-bytes-bin", Buffer.from(Array.from({ length: 256 }, (_, byte) => byte)));
    for (let index = 0; index < 50; index++) metadata.set(`x-many-${index}`, "v".repeat(index));
    const stream = new grpc.Metadata();
    stream.set("triton_grpc_error", "true");
    const call = v2().modelStreamInfer(stream, soon());
    const ended = streamEnd(call);
    call.write({ model_name: "nobody" });
    call.on("data", () => {});
    const found = await ask(prediction(), "predict", sums([1, 2, 3, 4]), { metadata });
    const answers = [await add(prediction(), [1, 2, 3, 4], { metadata }), await add(prediction())];
    return { answers, type: found.headers["content-type"], stream: await ended };
  },

  // The first call is at the gate already.
  async deadline() {
    const late = await ask(v2(), "modelInfer", gate(), { options: soon(0.3) });
    const past = await ask(v2(), "modelInfer", gate(), { options: soon(-1) });
    return [late.code, past.code];
  },

  async cancel() {
    const client = v2();
    const found = await ask(client, "modelInfer", gate(), {
      begun: (call) => process.stdin.once("data", () => call.cancel()),
    });
    process.stdin.destroy();
    return { code: found.code, after: await add(prediction()) };
  },

  async watch() {
    const client = health();
    const call = client.watch({}, soon());
    const ended = streamEnd(call);
    const first = await new Promise((resolve) => call.once("data", resolve));
    call.cancel();
    return { status: first.status, code: await ended, after: (await ask(client, "check", {})).answer.status };
  },

  async stream() {
    const call = v2().modelStreamInfer(soon());
    const ended = streamEnd(call);
    const values = [];
    let round = 0;
    call.on("data", (answer) => {
      values.push(answer.error_message || answer.infer_response.raw_output_contents[0].readInt32LE());
      if (values.length % 2) return;
      if (++round < 20) call.write(repeat(round, -round));
      else if (round === 20) call.end(repeat(100, 101));
    });
    call.write(repeat(0, 0));
    return { code: await ended, values };
  },

  async large() {
    const client = v2({ "grpc.default_compression_algorithm": given.algorithm });
    const sent = plain(3_000_000);
    const found = await Promise.all([ask(client, "modelInfer", sent), ask(client, "modelInfer", sent), ask(client, "modelInfer", plain(4))]);
    return found.map(({ code, details, answer }) => [code, details, answer?.raw_output_contents[0].length]);
  },

  async same() {
    const { answer } = await ask(v2({ "grpc.default_compression_algorithm": given.algorithm }), "modelInfer", plain(30_000));
    return answer.raw_output_contents[0].equals(plain(30_000).raw_input_contents[0]);
  },

  async parallel() {
    const client = prediction();
    return Promise.all(Array.from({ length: given.calls }, (_, index) => add(client, [index, 0, 1, 2])));
  },

  // A stream that says nothing more, and pings until two of them were answered.
  async keepalive() {
    const client = health({ "grpc.keepalive_time_ms": 100, "grpc.keepalive_timeout_ms": 10_000 });
    const call = client.watch({}, soon());
    const ended = streamEnd(call);
    call.on("data", () => {});
    await pongs(2);
    call.cancel();
    return { code: await ended, after: (await ask(client, "check", {})).answer.status };
  },
};

scenarios[scenario]().then((found) => {
  process.stdout.write(JSON.stringify(found), () => process.exit(0));
});
