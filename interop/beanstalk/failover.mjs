// A client of jackd goes on while the leader of the queue is killed under it.
//
// SYNOD_BEANSTALK has the nodes that stay, with commas between them; SYNOD_LEADER_PID is the process that goes.
import { createRequire } from 'node:module'
import process from 'node:process'

const require = createRequire(`${process.env.BEANSTALK_CLIENTS}/`)
const JackdClient = require('jackd')
const JOBS = 200
const KILL_AFTER = 50

const nodes = process.env.SYNOD_BEANSTALK.split(',')
const connect = async node => {
  const [host, port] = node.split(':')
  const client = new JackdClient()
  await client.connect({ host, port: Number(port) })
  return client
}

const tube = `failover-${Math.random().toString(36).slice(2)}`
const producer = await connect(nodes[0])
const worker = await connect(nodes.at(-1))
await producer.use(tube)
await worker.watch(tube)
const done = []
const working = (async () => {
  while (done.length < JOBS) {
    const job = await worker.reserve()
    await worker.delete(job.id)
    done.push(String(job.payload))
  }
})()
for (let number = 0; number < JOBS; number++) {
  if (number === KILL_AFTER) process.kill(Number(process.env.SYNOD_LEADER_PID), 'SIGKILL')
  await producer.put(String(number))
}
await working
const wanted = Array.from({ length: JOBS }, (_, number) => String(number))
const isSame = JSON.stringify([...done].sort()) === JSON.stringify([...wanted].sort())
console.log(isSame ? `  ok      ${JOBS} jobs were put and done once each while the leader was killed`
                   : `  failed  ${done.length} jobs were done, ${new Set(done).size} different ones; ${JOBS} were put`)
process.exit(isSame ? 0 : 1)
