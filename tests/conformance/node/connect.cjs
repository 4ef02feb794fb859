// @connectrpc/connect-node with its gRPC transport, run by test_node_clients.py: node connect.cjs SCENARIO JSON.
"use strict";

const fs = require("node:fs");
const { createClient, ConnectError } = require("@connectrpc/connect");
const { createGrpcTransport, compressionGzip } = require("@connectrpc/connect-node");
const { createFileRegistry, fromBinary } = require("@bufbuild/protobuf");
const { FileDescriptorSetSchema } = require("@bufbuild/protobuf/wkt");

const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, fs.readFileSync(process.env.DESCRIPTORS)));
const [, , scenario, text] = process.argv;
const given = JSON.parse(text);
const options = { timeoutMs: 60_000 };
const transport = createGrpcTransport({
  baseUrl: `${given.root ? "https" : "http"}://${given.target}`,
  nodeOptions: given.root ? { ca: fs.readFileSync(given.root) } : {},
  sendCompression: given.gzip ? compressionGzip : null,
  compressMinBytes: 1,
});
const client = (name) => createClient(registry.getService(name), transport);
const prediction = client("tensorflow.serving.PredictionService");
const v2 = client("inference.GRPCInferenceService");
const health = client("grpc.health.v1.Health");

// The error of a call, or null.
async function refused(call) {
  try {
    await call();
    return null;
  } catch (error) {
    const { code, rawMessage } = ConnectError.from(error);
    return { code, details: rawMessage };
  }
}

async function add(first = [1, 2, 3, 4], how = options) {
  const tensor = (values) => ({ dtype: 1, tensorShape: { dim: [{ size: 1n }, { size: 4n }] }, floatVal: values });
  const request = {
    modelSpec: { name: "sums", versionChoice: { case: "version", value: { value: 1n } } },
    inputs: { a: tensor(first), b: tensor([1, 1, 1, 1]) },
  };
  return (await prediction.predict(request, how)).outputs.sum.floatVal;
}

function raw(modelName, name, datatype, shape, content) {
  return { modelName, inputs: [{ name, datatype, shape: shape.map(BigInt) }], rawInputContents: [content] };
}

const bytes = (array) => new Uint8Array(array.buffer);
const plain = (count) => raw("plain", "x", "INT16", [1, count], bytes(Int16Array.from({ length: count }, (_, index) => index)));
const repeat = (...values) => raw("repeat", "IN", "INT32", [values.length], bytes(Int32Array.from(values)));
const gate = () => raw("gate", "x", "FP32", [1, 1], bytes(Float32Array.of(1)));
const HealthCheckResponse = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];
const value = (answer) => Buffer.from(answer.inferResponse.rawOutputContents[0]).readInt32LE();


async function* one(request) {
  yield request;
}

const scenarios = {
  predict: () => add(),

  async errors() {
    const unknown = await refused(() => prediction.predict({ modelSpec: { name: given.name } }, options));
    const nameless = await refused(() => prediction.predict({}, options));
    const service = registry.getService("tensorflow.serving.PredictionService");
    const method = { ...service.method.predict, name: "No" };
    const nonsense = await refused(() => transport.unary(method, undefined, 60_000, {}, {}));
    return { unknown, nameless, nonsense, after: await add() };
  },

  async metadata() {
    let type;
    const headers = { "x-plain": "with = and ;", "x-empty": "", "x-bytes-bin": "AAEC/w" };
    for (let index = 0; index < 50; index++) headers[`x-many-${index}`] = "v".repeat(index);
    const onHeader = (found) => (type = found.get("content-type"));
    const answer = await add([1, 2, 3, 4], { ...options, headers, onHeader });
    const wanted = { ...options, headers: { triton_grpc_error: "true" } };
    const ended = await refused(async () => {
      for await (const _ of v2.modelStreamInfer(one({ modelName: "nobody" }), wanted));
    });
    return { answers: [answer, await add()], type, stream: ended?.code };
  },

  // The first call is at the gate already.
  async deadline() {
    const late = await refused(() => v2.modelInfer(gate(), { timeoutMs: 300 }));
    const past = await refused(() => v2.modelInfer(gate(), { timeoutMs: 1 }));
    return [late?.code, past?.code];
  },

  async cancel() {
    const stop = new AbortController();
    process.stdin.once("data", () => stop.abort());
    const found = await refused(() => v2.modelInfer(gate(), { ...options, signal: stop.signal }));
    return { code: found?.code, after: await add() };
  },

  async watch() {
    const stop = new AbortController();
    let status;
    const ended = await refused(async () => {
      for await (const answer of health.watch({}, { ...options, signal: stop.signal })) {
        status = HealthCheckResponse[answer.status];
        stop.abort();
      }
    });
    return { status, code: ended?.code, after: HealthCheckResponse[(await health.check({}, options)).status] };
  },

  async stream() {
    const turns = [];
    const values = [];
    let wake = () => {};
    async function* requests() {
      for (let round = 0; round < 20; round++) {
        yield repeat(round, -round);
        while (values.length < 2 * (round + 1)) await new Promise((resolve) => (wake = resolve));
      }
      yield repeat(100, 101);
    }
    for await (const answer of v2.modelStreamInfer(requests(), options)) {
      values.push(value(answer));
      wake();
    }
    return { code: 0, values };
  },

  async large() {
    const sent = plain(3_000_000);
    const answers = await Promise.all([sent, sent, plain(4)].map((request) => v2.modelInfer(request, options)));
    return answers.map(({ rawOutputContents: [content] }) => [0, "", content.length]);
  },

  async same() {
    const sent = plain(3_000_000);
    const [content] = (await v2.modelInfer(sent, options)).rawOutputContents;
    return Buffer.from(content).equals(Buffer.from(sent.rawInputContents[0]));
  },

  parallel: () => Promise.all(Array.from({ length: given.calls }, (_, index) => add([index, 0, 1, 2]))),
};

scenarios[scenario]().then((found) => {
  process.stdout.write(JSON.stringify(found), () => process.exit(0));
});
