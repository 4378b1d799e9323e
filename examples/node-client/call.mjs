// Calls a capability of a node: node call.mjs HOST:PORT CAPABILITY ['{"json": "arguments"}'] [--stream] [--mesh NAME]
import { Collection } from "./msgpack.mjs";
import { Client } from "./reachmesh.mjs";

const words = process.argv.slice(2), streams = words.includes("--stream");
const mesh = words.includes("--mesh") ? words[words.indexOf("--mesh") + 1] : "default";
const [address, capability, json = "{}"] = words.filter((word, index) => !word.startsWith("--") && words[index - 1] !== "--mesh");
const plain = (_, value) => (value instanceof Map ? Object.fromEntries(value) : value instanceof Collection ? value.items : typeof value === "bigint" ? String(value) : value);
const colon = address.lastIndexOf(":");
try {
  const client = await Client.connect(address.slice(0, colon).replace(/^\[|\]$/g, ""), Number(address.slice(colon + 1)), { mesh });
  if (streams) for await (const item of client.stream(capability, JSON.parse(json))) console.log(JSON.stringify(item, plain));
  else console.log(JSON.stringify(await client.call(capability, JSON.parse(json)), plain));
  client.close();
} catch (error) {
  console.error(`${error.code ?? "error"}: ${error.message}`);
  process.exit(1);
}
