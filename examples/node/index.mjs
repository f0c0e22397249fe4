// Streams a chat through `turnlog proxy`. The base URL is all that changes:
//
//   turnlog proxy --upstream https://api.openai.com --port 8400
//   OPENAI_API_KEY=... OPENAI_BASE_URL=http://127.0.0.1:8400/v1 npm start -- "Why is the sky blue?"
//
// The answer goes to stdout as it comes; the id of its run to stderr, for `turnlog run RUN`.
import OpenAI from "openai";

const client = new OpenAI();
const question = process.argv[2] ?? "Can I put a 1x12 drivetrain on my 2017 hardtail?";

const { data: stream, response } = await client.chat.completions
  .create(
    {
      model: process.env.OPENAI_MODEL ?? "gpt-4o-mini",
      messages: [{ role: "user", content: question }],
      stream: true,
      stream_options: { include_usage: true },
    },
    // Taken by the proxy, never sent to the provider.
    { headers: { "x-turnlog-user": "ann", "x-turnlog-conversation": "workshop-1" } },
  )
  .withResponse();

for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}
process.stdout.write("\n");
process.stderr.write(`run ${response.headers.get("x-turnlog-run")}\n`);
