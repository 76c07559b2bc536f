package bootstrap

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	childRank    = "BOOTSTRAP_TEST_RANK"
	childSize    = "BOOTSTRAP_TEST_SIZE"
	childID      = "BOOTSTRAP_TEST_ID"
	childTimeout = "BOOTSTRAP_TEST_TIMEOUT"
	childListen  = "BOOTSTRAP_TEST_LISTEN" // be the root as well: of a new id, or of the one given
)

// runChild makes the test binary one process of a job when it is told to. It
// says what happens on standard output, a line each, and does what standard
// input says.
func runChild() bool {
	rank, err := strconv.Atoi(os.Getenv(childRank))
	if err != nil {
		return false
	}
	size, _ := strconv.Atoi(os.Getenv(childSize))
	timeout, _ := time.ParseDuration(os.Getenv(childTimeout))
	id, err := ParseID(os.Getenv(childID))
	if os.Getenv(childListen) != "" {
		root, err := Listen(ListenConfig{ID: id})
		if err != nil {
			fmt.Println("failed", err)
			return true
		}
		defer root.Close()
		id = root.ID()
		fmt.Println("id", id)
	} else if err != nil {
		fmt.Println("failed", err)
		return true
	}
	c, err := Join(context.Background(), Config{ID: id, Rank: rank, Size: size, Timeout: timeout})
	if err != nil {
		fmt.Println("failed", err)
		return true
	}
	fmt.Println("joined")
	c.Handle(Handler{
		Message: func(from int, m []byte) { fmt.Println("message", from, string(m)) },
		Lost:    func(rank int, err error) { fmt.Println("because", err); fmt.Println("lost", rank) },
		Left:    func(rank int) { fmt.Println("left", rank) },
	})
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if in.Text() == "close" {
			break
		}
		if err := c.Tell(in.Bytes()); err != nil {
			fmt.Println("tell", err)
		}
	}
	if err := c.Close(context.Background()); err != nil {
		fmt.Println("close", err)
	}
	return true
}

// child is such a process.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser

	mu      sync.Mutex
	lines   []string
	ended   bool
	changed chan struct{}
	gone    chan struct{} // it has been waited for
}

func startChild(t *testing.T, id ID, rank, size int, timeout time.Duration) *child {
	return startCommand(t, exec.Command(os.Args[0]), id, rank, size, timeout)
}

func startCommand(t *testing.T, cmd *exec.Cmd, id ID, rank, size int, timeout time.Duration) *child {
	c := &child{cmd: cmd, changed: make(chan struct{}), gone: make(chan struct{})}
	c.cmd.Env = append(append(os.Environ(), cmd.Env...), fmt.Sprintf("%s=%d", childRank, rank), fmt.Sprintf("%s=%d", childSize, size),
		childID+"="+id.String(), childTimeout+"="+timeout.String())
	var trouble bytes.Buffer
	c.cmd.Stderr = &trouble
	in, err := c.cmd.StdinPipe()
	require.NoError(t, err)
	c.in = in
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	go func() {
		defer close(c.gone)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.note(s.Text(), false)
		}
		c.cmd.Wait()
		c.note(trouble.String(), true)
	}()
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		<-c.gone
	})
	return c
}

func (c *child) note(line string, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if line != "" {
		c.lines = append(c.lines, line)
	}
	c.ended = ended
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *child) say(t *testing.T, line string) {
	_, err := fmt.Fprintln(c.in, line)
	require.NoError(t, err)
}

// until waits for a line that starts so, and returns it.
func (c *child) until(t *testing.T, starts ...string) string {
	t.Helper()
	deadline := time.After(patient)
	for {
		c.mu.Lock()
		i := slices.IndexFunc(c.lines, func(l string) bool {
			return slices.ContainsFunc(starts, func(s string) bool { return strings.HasPrefix(l, s) })
		})
		found := ""
		if i >= 0 {
			found = c.lines[i]
		}
		ended, changed, all := c.ended, c.changed, slices.Clone(c.lines)
		c.mu.Unlock()
		if i >= 0 {
			return found
		}
		require.False(t, ended, "ended without %q; it said %q", starts, all)
		select {
		case <-changed:
		case <-deadline:
			require.FailNow(t, "waited in vain", "for %q; it said %q", starts, all)
		}
	}
}

// said is the rest of every line that starts with word.
func (c *child) said(word string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, l := range c.lines {
		if rest, ok := strings.CutPrefix(l, word+" "); ok {
			out = append(out, rest)
		}
	}
	return out
}

// Processes are killed at random points, some while the job starts: everyone
// else names them, or, when they had not yet checked in, misses them.
func TestKilledProcessesAreNamed(t *testing.T) {
	rng := seed(t)
	joined, failed := 0, 0
	for round := range 8 {
		n := 2 + rng.IntN(4)
		dead := rng.IntN(n)
		root := startRoot(t, ListenConfig{Network: networks[rng.IntN(2)], Timeout: 2 * time.Second})
		// In some rounds a rank never comes, so that nobody can have joined.
		absent := -1
		if a := rng.IntN(n); round > 0 && n > 2 && a != dead && rng.IntN(2) == 0 {
			absent = a
		}
		cs := make([]*child, n)
		for r := range n {
			if r != absent {
				cs[r] = startChild(t, root.ID(), r, n, patient)
			}
		}
		if round > 0 { // the first is killed before anything; the others somewhere on their way
			stage := 1 + rng.IntN(n)
			if absent >= 0 {
				stage = n - 1
			}
			require.Eventually(t, func() bool {
				root.mu.Lock()
				defer root.mu.Unlock()
				return root.checked >= stage && (root.waiting[dead] != nil || root.joined)
			}, patient, time.Millisecond)
			time.Sleep(time.Duration(rng.IntN(10)) * time.Millisecond)
		}
		require.NoError(t, cs[dead].cmd.Process.Kill())
		var in []*child
		for r, c := range cs {
			if r == dead || r == absent {
				continue
			}
			if line := c.until(t, "joined", "failed"); line != "joined" {
				failed++
				require.Regexp(t, fmt.Sprintf(`rank %d\b`, dead), line)
				continue
			}
			joined++
			c.until(t, fmt.Sprintf("lost %d", dead))
			in = append(in, c)
		}
		for _, c := range in {
			c.say(t, "close")
		}
		for _, c := range in {
			<-c.gone
			// Who could not join because of it is lost to those who had, but after it.
			for i, text := range c.said("lost") {
				r, err := strconv.Atoi(text)
				require.NoError(t, err)
				if i == 0 {
					require.Equal(t, dead, r, "%q", c.lines)
				} else {
					require.NotEmpty(t, cs[r].said("failed"), "rank %d is not lost: %q", r, c.lines)
				}
			}
		}
		root.Close()
	}
	t.Logf("%d survivors had joined, %d failed to", joined, failed)
}

// Several processes die in the same moment, while everyone talks.
func TestHalfOfTheProcessesKilledAtOnce(t *testing.T) {
	rng := seed(t)
	const n = 10
	root := startRoot(t, ListenConfig{Network: NetworkLocal})
	cs := make([]*child, n)
	for r := range n {
		cs[r] = startChild(t, root.ID(), r, n, patient)
	}
	for _, c := range cs {
		c.until(t, "joined")
		c.say(t, "hello")
	}
	order := rng.Perm(n)
	dead, stay := order[:n/2], order[n/2:]
	for _, r := range dead {
		require.NoError(t, cs[r].cmd.Process.Kill())
	}
	for _, r := range stay {
		for _, d := range dead {
			cs[r].until(t, fmt.Sprintf("lost %d", d))
		}
		require.Len(t, cs[r].said("lost"), len(dead))
	}
	for _, r := range stay {
		cs[r].say(t, "goodbye")
		cs[r].say(t, "close")
	}
	for _, r := range stay {
		<-cs[r].gone
		require.Len(t, cs[r].said("lost"), len(dead), "who leaves is not lost: %q", cs[r].lines)
		require.Empty(t, cs[r].said("close"))
	}
}
