// openai for Node. Same lines as checking.py.

import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const packages = createRequire(process.env.ANTIPHON_TEST_NODE + "/");
const { default: OpenAI, NotFoundError, BadRequestError, toFile } = await import(
  pathToFileURL(packages.resolve("openai")).href
).then((module) => (module.default?.default ? module.default : module));

const client = new OpenAI({
  baseURL: process.env.ANTIPHON_TEST_URL,
  apiKey: "unused",
  maxRetries: 0,
  timeout: 120_000,
});
const names = (await client.models.list()).data.map((model) => model.id);
const model = names.find((name) => name.includes("instruct"));
const hello = [{ role: "user", content: "Say hello." }];
const common = { model, temperature: 0, seed: 1 };
const weather = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather in a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};

class Skipped extends Error {}

async function check_models() {
  assert.equal((await client.models.retrieve(model)).id, model);
  await assert.rejects(client.models.retrieve("nothing"), NotFoundError);
}

async function check_chat() {
  const answer = await client.chat.completions.create({ ...common, messages: hello, max_tokens: 24 });
  assert.ok(answer.choices[0].message.content);
  assert.ok(answer._request_id);
}

async function check_stream() {
  const asked = { ...common, messages: hello, max_tokens: 24 };
  const whole = await client.chat.completions.create(asked);
  const stream = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const last = await stream.finalChatCompletion();
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(last.choices[0].message.content, text);
  assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
}

async function check_tools() {
  const asked = {
    ...common,
    messages: [{ role: "user", content: "What is the weather in Paris?" }],
    tools: [weather],
    tool_choice: { type: "function", function: { name: "weather" } },
    max_tokens: 60,
  };
  const answer = await client.chat.completions.create(asked);
  const [call] = answer.choices[0].message.tool_calls;
  assert.equal(typeof JSON.parse(call.function.arguments).city, "string");
  const [streamed] = (await client.chat.completions.stream(asked).finalMessage()).tool_calls;
  assert.deepEqual(streamed.function.arguments, call.function.arguments);
}

async function check_run_tools() {
  const cities = [];
  const tool = {
    type: "function",
    function: {
      ...weather.function,
      parse: JSON.parse,
      function: ({ city }) => {
        cities.push(city);
        return "It is sunny.";
      },
    },
  };
  const runner = client.chat.completions.runTools(
    {
      ...common,
      messages: [{ role: "user", content: "What is the weather in Paris?" }],
      tools: [tool],
      tool_choice: "required",
      max_tokens: 60,
    },
    { maxChatCompletions: 1 },
  );
  await runner.done();
  assert.ok(cities.length > 0);
}

async function check_structured_output() {
  const answer = await client.chat.completions.create({
    ...common,
    messages: [{ role: "user", content: "Ada is 36 years old." }],
    max_tokens: 60,
    response_format: {
      type: "json_schema",
      json_schema: {
        name: "person",
        strict: true,
        schema: {
          type: "object",
          properties: { name: { type: "string" }, age: { type: "integer" } },
          required: ["name", "age"],
          additionalProperties: false,
        },
      },
    },
  });
  const person = JSON.parse(answer.choices[0].message.content);
  assert.deepEqual(Object.keys(person).sort(), ["age", "name"]);
  assert.ok(Number.isInteger(person.age));
}

async function check_responses() {
  const asked = { model, input: "Say hello.", max_output_tokens: 24, temperature: 0 };
  const answer = await client.responses.create(asked);
  assert.ok(answer.output_text);
  const stream = client.responses.stream(asked);
  const types = [];
  for await (const event of stream) types.push(event.type);
  assert.equal(types[0], "response.created");
  assert.equal((await stream.finalResponse()).output_text, answer.output_text);
}

async function check_completions() {
  const answer = await client.completions.create({ ...common, prompt: "One, two, three,", max_tokens: 8 });
  assert.ok(answer.choices[0].text);
}

async function check_embeddings() {
  const name = names.find((name) => /minilm/i.test(name));
  if (!name) throw new Skipped("no embedding model is configured");
  const answer = await client.embeddings.create({ model: name, input: ["a cat", "a dog"] });
  assert.ok(answer.data[1].embedding.length > 100);
}

async function check_transcription() {
  const file = () => createReadStream(process.env.ANTIPHON_TEST_QUESTION);
  const answer = await client.audio.transcriptions.create({ model: "whisper-1", file: file() });
  assert.match(answer.text.toLowerCase(), /unusual/);
  const stream = await client.audio.transcriptions.create({ model: "whisper-1", file: file(), stream: true });
  let text = "";
  for await (const event of stream) if (event.type === "transcript.text.delta") text += event.delta;
  assert.match(text.toLowerCase(), /unusual/);
}

async function check_speech() {
  const answer = await client.audio.speech.create({ model: "tts-1", voice: "alloy", input: "Good morning." });
  assert.equal(answer.headers.get("content-type"), "audio/mpeg");
  const bytes = Buffer.from(await answer.arrayBuffer());
  assert.equal(bytes.subarray(0, 3).toString(), "ID3");
  const heard = await client.audio.transcriptions.create({
    model: "whisper-1",
    file: await toFile(bytes, "speech.mp3"),
  });
  assert.match(heard.text.toLowerCase(), /good morning/);
}

async function check_refusals() {
  await assert.rejects(
    client.chat.completions.create({ ...common, messages: hello, temperature: 3 }),
    (error) => error instanceof BadRequestError && error.param === "temperature",
  );
}

const checks = {
  check_models,
  check_chat,
  check_stream,
  check_tools,
  check_run_tools,
  check_structured_output,
  check_responses,
  check_completions,
  check_embeddings,
  check_transcription,
  check_speech,
  check_refusals,
};
for (const [name, check] of Object.entries(checks)) {
  const line = { check: name.replace("check_", ""), error: null };
  try {
    await check();
  } catch (error) {
    if (error instanceof Skipped) line.skipped = error.message;
    else line.error = String(error?.stack ?? error);
  }
  console.log(JSON.stringify(line));
}
