// What jackd's users do, through one node and another. Every check has tubes of its own.
//
// SYNOD_BEANSTALK says where: HOST:PORT, or several with commas between them. BEANSTALK_CLIENTS is where the client is
// installed. It passes with beanstalkd itself, too.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { createRequire } from 'node:module'

const require = createRequire(`${process.env.BEANSTALK_CLIENTS}/`)
const JackdClient = require('jackd')

const addresses = process.env.SYNOD_BEANSTALK.split(',').map(address => {
  const colon = address.lastIndexOf(':')
  return { host: address.slice(0, colon), port: Number(address.slice(colon + 1)) }
})
const run = randomBytes(6).toString('hex')
const checks = []
const check = (name, body) => checks.push({ name, body })

/** Clients for the nodes, with a tube of their own. */
class Nodes {
  constructor(number) {
    this.tube = `check-${run}-${number}`
    this.clients = []
  }

  producer() {
    return this.client(addresses[0])
  }

  worker() {
    return this.client(addresses.at(-1))
  }

  async client(address) {
    const client = new JackdClient()
    await client.connect(address)
    this.clients.push(client)
    await client.use(this.tube)
    await client.watch(this.tube)
    await client.ignore('default')
    return client
  }

  async close() {
    for (const client of this.clients) await client.quit()
  }
}

const value = (yaml, key) => yaml.match(new RegExp(`^${key}: (.*)$`, 'm'))?.[1]
const seconds = begun => (performance.now() - begun) / 1000

check('a job is put, reserved and deleted', async nodes => {
  const [producer, worker] = [await nodes.producer(), await nodes.worker()]
  const id = await producer.put('hello')
  const job = await worker.reserveWithTimeout(5)
  assert.deepEqual([job.id, job.payload.toString()], [id, 'hello'])
  await assert.rejects(producer.delete(id), /NOT_FOUND/)
  await worker.delete(id)
  await assert.rejects(producer.peek(id), /NOT_FOUND/)
})

check('commands that are sent ahead are answered in order', async nodes => {
  const producer = await nodes.producer()
  const ids = await Promise.all(Array.from({ length: 1000 }, (_, number) => producer.put(`job ${number}`)))
  assert.deepEqual(ids, ids.toSorted((a, b) => Number(BigInt(a) - BigInt(b))))
  assert.equal(value(await producer.statsTube(nodes.tube), 'current-jobs-ready'), '1000')
  const deleted = await Promise.allSettled([...ids, ...ids].map(id => producer.delete(id)))
  assert.deepEqual(deleted.map(({ status }) => status), [...ids.fill('fulfilled'), ...Array(1000).fill('rejected')])
})

check('long bodies', async nodes => {
  const [producer, worker] = [await nodes.producer(), await nodes.worker()]
  const body = randomBytes(20_000).toString('hex')
  await producer.put(body)
  assert.equal((await worker.reserveWithTimeout(5)).payload.toString(), body)
  const longest = Number(value(await producer.stats(), 'max-job-size'))
  await assert.rejects(producer.put('x'.repeat(longest + 1)), /JOB_TOO_BIG/)
})

check('priorities and delays', async nodes => {
  const [producer, worker] = [await nodes.producer(), await nodes.worker()]
  const begun = performance.now()
  const ids = [
    await producer.put('delayed', { priority: 0, delay: 2 }),
    await producer.put('later', { priority: 9 }),
    await producer.put('sooner', { priority: 1 })
  ]
  const got = []
  for (let number = 0; number < 3; number++) got.push((await worker.reserveWithTimeout(9)).id)
  assert.deepEqual(got, [ids[2], ids[1], ids[0]])
  assert.ok(seconds(begun) >= 1.9, `${seconds(begun)}`)
})

check('a job that is held for too long is given to another', async nodes => {
  const [producer, late, worker] = [await nodes.producer(), await nodes.worker(), await nodes.worker()]
  const id = await producer.put('slow', { ttr: 2 })
  await late.reserveWithTimeout(5)
  await assert.rejects(late.reserveWithTimeout(9), /DEADLINE_SOON/)
  assert.equal((await worker.reserveWithTimeout(9)).id, id)
  await assert.rejects(late.touch(id), /NOT_FOUND/)
  await assert.rejects(late.delete(id), /NOT_FOUND/)
  await worker.delete(id)
  await assert.rejects(worker.reserveWithTimeout(0), /TIMED_OUT/)
})

check('release, touch, bury and kick', async nodes => {
  const [producer, worker] = [await nodes.producer(), await nodes.worker()]
  const id = await producer.put('x', { ttr: 30 })
  await worker.reserveWithTimeout(5)
  await worker.touch(id)
  await worker.release(id, { priority: 5, delay: 60 })
  assert.equal((await producer.peekDelayed()).id, id)
  assert.equal(await producer.kick(5), 1)
  assert.equal((await producer.peekReady()).id, id)
  await worker.reserveJob(id)
  await worker.bury(id, 3)
  assert.equal((await producer.peekBuried()).id, id)
  await producer.kickJob(id)
  const told = await producer.statsJob(id)
  assert.deepEqual(['state', 'pri', 'kicks', 'buries', 'releases'].map(key => value(told, key)), ['ready', '3', '2', '1', '1'])
})

// Its command to pause a tube has no end of line, so that is not checked here.
check('tubes', async nodes => {
  const [producer, worker] = [await nodes.producer(), await nodes.worker()]
  assert.equal(await worker.listTubeUsed(), nodes.tube)
  await assert.rejects(worker.ignore(nodes.tube), /NOT_IGNORED/)
  const second = `${nodes.tube}-second`
  await producer.use(second)
  const id = await producer.put('x')
  assert.ok((await worker.listTubes()).includes(`- ${second}\n`))
  await assert.rejects(worker.reserveWithTimeout(0), /TIMED_OUT/)
  assert.equal(Number(await worker.watch(second)), 2)
  assert.equal((await worker.reserveWithTimeout(9)).id, id)
})

let failures = 0
for (const [number, { name, body }] of checks.entries()) {
  const [nodes, begun] = [new Nodes(number), performance.now()]
  let trouble
  const late = new Promise((_, reject) => setTimeout(() => reject(new Error('it does not end')), 30_000).unref())
  try {
    await Promise.race([body(nodes), late])
  } catch (error) {
    trouble = error
    failures += 1
  }
  await nodes.close()
  console.log(`  ${trouble ? '✗' : '✓'} ${name} (${seconds(begun).toFixed(1)} s)`)
  if (trouble) console.log(`${trouble.stack}`.split('\n').slice(0, 20).map(line => `      ${line}`).join('\n'))
}
process.exit(failures > 0 ? 1 : 0)
