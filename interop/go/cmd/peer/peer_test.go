package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"synod/interop/internal/dialect"
)

// The test binary is the peer itself when it finds this in its environment, so nothing has to be built first.
const runAsPeer = "SYNOD_INTEROP_RUN_AS_PEER"

func TestMain(m *testing.M) {
	if os.Getenv(runAsPeer) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestTwoPeersFormAClusterAndOneLeaves(t *testing.T) {
	one, two := startPair(t)
	for _, peer := range []*process{one, two} {
		peer.await("topology", func(o object) bool { return len(o["members"].([]any)) == 2 })
	}

	// Gossip: a value set on one side appears on the other, and both hear each other's heartbeat.
	two.ask("set color deep blue")
	eventually(t, func() bool {
		return one.ask("get color")["values"].(object)[two.id] == "deep blue"
	})
	eventually(t, func() bool { return len(one.ask("heartbeats")["members"].(object)) == 2 })
	t.Log(one.ask("heartbeats"))

	// Actors: requests, one-way messages, the lack of an actor, and the end of one.
	two.ask("spawn mirror")
	there := two.address + " mirror"
	expect(t, one.ask("ask " + there + " hello there 5000")["text"], "hello there")
	expect(t, one.ask("touch " + there + " 5000")["who"].(object)["id"], "mirror")
	expect(t, one.ask("touch " + two.address + " nobody 1000")["error"], "dead letter")
	one.ask("tell " + there + " by the way")
	eventually(t, func() bool { return two.ask("received mirror")["last"] == "by the way" })
	expect(t, two.ask("received mirror")["count"], 2.0)
	one.ask("watch " + there)
	one.ask("poison " + there)
	one.await("terminated", func(o object) bool { return o["id"] == "mirror" && o["why"] == 0.0 })

	// Leaving: the one that stays sees it go and never lets it back.
	two.send("leave")
	one.await("topology", func(o object) bool {
		return slices.Contains(o["left"].([]any), any(two.id)) && slices.Contains(o["blocked"].([]any), any(two.id))
	})
	two.await("left", func(object) bool { return true })
	if err := two.wait(); err != nil {
		t.Errorf("the peer that left ended with %v", err)
	}
}

func TestTheEndOfInputEndsThePeer(t *testing.T) {
	one, _ := startPair(t)
	one.stdin.Close()
	if err := one.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestMistakesAreAnswered(t *testing.T) {
	one, _ := startPair(t)
	expect(t, one.ask("dance")["error"], "unknown command")
	expect(t, one.ask("set color")["error"], "usage: set KEY TEXT")
	expect(t, one.ask("received nobody")["error"], "not spawned here")
}

type process struct {
	t           *testing.T
	name        string
	command     *exec.Cmd
	stdin       io.WriteCloser
	lines       chan object
	id, address string
	// Events that were read and not awaited yet.
	unseen []object
}

func startPair(t *testing.T) (*process, *process) {
	ports := freePorts(t, 2)
	hosts := fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", ports[0], ports[1])
	one, two := start(t, "one", ports[0], hosts), start(t, "two", ports[1], hosts)
	for _, peer := range []*process{one, two} {
		ready := peer.await("ready", func(o object) bool { return o["dialect"] == dialect.Name })
		expect(t, ready["joined"], true)
		peer.id, peer.address = ready["id"].(string), ready["address"].(string)
	}
	return one, two
}

func start(t *testing.T, name string, health int, hosts string) *process {
	command := exec.Command(os.Args[0], "--cluster", t.Name(), "--health-port", fmt.Sprint(health), "--hosts", hosts)
	command.Env = append(os.Environ(), runAsPeer+"=1")
	log := &strings.Builder{}
	command.Stderr = log
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, name: name, command: command, stdin: stdin, lines: make(chan object, 1000)}
	go func() {
		defer close(p.lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			var line object
			if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
				line = object{"event": "garbage", "line": scanner.Text()}
			}
			p.lines <- line
		}
	}()
	t.Cleanup(func() {
		stdin.Close()
		// An error only says that it has ended already, which is what is wanted.
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, log)
		}
	})
	return p
}

func (p *process) send(line string) {
	if _, err := fmt.Fprintln(p.stdin, line); err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
}

// ask sends a command and returns its answer.
func (p *process) ask(line string) object {
	p.t.Helper()
	p.send(line)
	name := strings.Fields(line)[0]
	for {
		read := p.read(line)
		if read["reply"] == name {
			return read
		}
		p.unseen = append(p.unseen, read)
	}
}

// await returns the first event of that name that pleases, be it one that came while something else was waited for.
func (p *process) await(event string, pleases func(object) bool) object {
	p.t.Helper()
	matches := func(line object) bool { return line["event"] == event && pleases(line) }
	for at, line := range p.unseen {
		if matches(line) {
			p.unseen = slices.Delete(p.unseen, at, at+1)
			return line
		}
	}
	for {
		line := p.read(event)
		if matches(line) {
			return line
		}
		p.unseen = append(p.unseen, line)
	}
}

func (p *process) read(why string) object {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatalf("%s ended while waiting for %q", p.name, why)
		}
		if line["event"] == "garbage" {
			p.t.Fatalf("%s wrote %q", p.name, line["line"])
		}
		p.t.Logf("%s: %v", p.name, line)
		return line
	case <-time.After(20 * time.Second):
		p.t.Fatalf("%s: nothing more came while waiting for %q", p.name, why)
		return nil
	}
}

func (p *process) wait() error {
	ended := make(chan error, 1)
	go func() {
		for range p.lines {
			// Wait must not be called before everything was read.
		}
		ended <- p.command.Wait()
	}()
	select {
	case err := <-ended:
		return err
	case <-time.After(20 * time.Second):
		return fmt.Errorf("%s did not end", p.name)
	}
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for range 100 {
		if holds() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("did not come to pass")
}

func expect(t *testing.T, got, want any) {
	t.Helper()
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func freePorts(t *testing.T, n int) []int {
	ports := make([]int, 0, n)
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports
}
