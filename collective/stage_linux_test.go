package collective_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gollective/gollective/collective"
)

// Tests with processes start this test binary again; a variable says which role it
// plays then. A process reports on descriptor 3, a line of JSON each, and gets its
// cues on standard input; when that ends, so does the process: none outlives the
// test.

const (
	roleVar = "GOLLECTIVE_TEST_ROLE"
	argsVar = "GOLLECTIVE_TEST_ROLE_ARGS"
	// launcherVar is set where a launcher stands between test and process, and has
	// uses of its own for the descriptors.
	launcherVar = "GOLLECTIVE_TEST_ROLE_LAUNCHED"
)

// roles are what processes of tests do; an error that one returns is reported as
// "failed".
var roles = map[string]func(*player) error{}

// role adds to roles.
func role(name string, play func(*player) error) string {
	if _, exists := roles[name]; exists {
		panic("two roles " + name)
	}
	roles[name] = play
	return name
}

// player is a process in its role.
type player struct {
	args []byte
	out  *os.File
	mu   sync.Mutex
	cues chan string
}

// report is what a process tells the test.
type report struct {
	Process int
	What    string
	At      time.Time
	Text    string
	Error   *named
	Numbers []float64
}

// named is an error in a form that travels: which kind it is and whom it names.
type named struct {
	Kind  string // lost, timeout, mismatch, closed, aborted, space, invalid, other
	Ranks []int
	Calls []string // of a mismatch
	Text  string
}

func nameOf(err error) *named {
	if err == nil {
		return nil
	}
	n := &named{Kind: "other", Text: err.Error()}
	var lost *collective.PeerLostError
	var timeout *collective.TimeoutError
	var mismatch *collective.MismatchError
	var closed *collective.PeerClosedError
	var aborted *collective.AbortError
	switch {
	case errors.Is(err, collective.ErrSpace):
		n.Kind = "space"
	case errors.As(err, &lost):
		n.Kind, n.Ranks = "lost", append([]int{lost.Rank}, lost.Others...)
	case errors.As(err, &timeout):
		n.Kind, n.Ranks = "timeout", timeout.Missing
		if len(timeout.Silent) > 0 { // others may be missing because they wait for these
			n.Ranks = timeout.Silent
		}
	case errors.As(err, &mismatch):
		n.Kind, n.Ranks = "mismatch", []int{mismatch.Rank, mismatch.PeerRank}
		n.Calls = []string{mismatch.Call, mismatch.PeerCall}
	case errors.As(err, &closed):
		n.Kind, n.Ranks = "closed", []int{closed.PeerRank}
	case errors.As(err, &aborted):
		n.Kind, n.Ranks = "aborted", []int{aborted.Rank}
	case errors.Is(err, collective.ErrInvalid):
		n.Kind = "invalid"
	}
	var child *inChild
	if errors.As(err, &child) && n.Kind != "aborted" { // an Abort of the parent's is the parent's rank's
		for i, rank := range n.Ranks {
			n.Ranks[i] = child.members[rank]
		}
	}
	return n
}

// inChild is an error of a communicator made by Split, whose ranks were members of
// the one it was made of.
type inChild struct {
	error
	members []int
}

func (e *inChild) Unwrap() error { return e.error }

// playRole plays the role that the environment asks for, if it does, and does not
// return then.
func playRole() bool {
	name := os.Getenv(roleVar)
	if name == "" {
		return false
	}
	p := &player{args: []byte(os.Getenv(argsVar)), cues: make(chan string, 100)}
	if os.Getenv(launcherVar) == "" {
		p.out = os.NewFile(3, "reports")
		go p.listen()
	}
	play, ok := roles[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "no role", name)
		os.Exit(5)
	}
	if err := play(p); err != nil {
		p.report(report{What: "failed", Error: nameOf(err)})
		os.Exit(1)
	}
	os.Exit(0)
	return true
}

// listen takes cues until the test ends.
func (p *player) listen() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		p.cues <- lines.Text()
	}
	os.Exit(4)
}

func (p *player) report(r report) {
	if p.out == nil {
		return
	}
	r.At = time.Now()
	line, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.out.Write(append(line, '\n'))
}

// tell reports something that an error may come with.
func (p *player) tell(what string, err error, numbers ...float64) {
	p.report(report{What: what, Error: nameOf(err), Numbers: numbers})
}

// await returns at the cue, which must be the next.
func (p *player) await(cue string) error {
	if got := <-p.cues; got != cue {
		return fmt.Errorf("the cue is %q, expected %q", got, cue)
	}
	return nil
}

func (p *player) arguments(into any) {
	if err := json.Unmarshal(p.args, into); err != nil {
		panic(err)
	}
}

// traces is what a communicator must not leave behind in a process.
type traces struct {
	descriptors []string
	goroutines  goleak.Option
}

// tracesNow is to be called before the first communicator is made.
func tracesNow() traces {
	return traces{descriptors: descriptors(), goroutines: goleak.IgnoreCurrent()}
}

// left reports what is there that was not when t was taken.
func (t traces) left() error {
	var errs []error
	maps, err := os.ReadFile("/proc/self/maps")
	errs = append(errs, err)
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "memfd:gollective") {
			errs = append(errs, fmt.Errorf("mapped: %s", strings.TrimSpace(line)))
		}
	}
	errs = append(errs, goleak.Find(t.goroutines))
	// The runtime's poller has some of its own from the first connection on.
	for _, d := range descriptors() {
		if !slices.Contains(t.descriptors, d) && !strings.Contains(d, "eventpoll") && !strings.Contains(d, "eventfd") {
			errs = append(errs, fmt.Errorf("open: %s", d))
		}
	}
	return errors.Join(errs...)
}

// descriptors lists what is open, by number and kind.
func descriptors() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return []string{err.Error()}
	}
	var all []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil { // else it was ReadDir's
			all = append(all, e.Name()+" "+to)
		}
	}
	return all
}

// processorTime is what this process has used so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cast are the processes of a test.
type cast struct {
	t         testing.TB
	processes []*process
	mu        sync.Mutex
	changed   chan struct{} // closed and replaced with every report and every end
}

type process struct {
	cmd     *exec.Cmd
	cues    io.WriteCloser
	out     *bytes.Buffer
	reports []report
	ended   bool
	code    int // of exit, -1 for a signal
	expired time.Time
}

// staging is how a cast is started.
type staging struct {
	role string
	args any                       // the same for all, or
	each func(number int) any      // one for each
	env  func(number int) []string // besides rank, size and id
	id   string                    // "": of a UniqueID that the test serves
	size int
	// command goes in front of the test binary.
	command func(number int) []string
}

// stage starts the processes of a job. They are gone when the test ends.
func stage(t testing.TB, s staging) *cast {
	t.Helper()
	c := &cast{t: t, changed: make(chan struct{})}
	if s.id == "" {
		u, err := collective.NewUniqueID(collective.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, u.Close()) })
		s.id = u.String()
	}
	t.Cleanup(c.clear)
	for number := range s.size {
		args := s.args
		if s.each != nil {
			args = s.each(number)
		}
		env := []string{
			"GOLLECTIVE_RANK=" + strconv.Itoa(number), "GOLLECTIVE_SIZE=" + strconv.Itoa(s.size),
		}
		if s.id != "none" {
			env = append(env, "GOLLECTIVE_COMM_ID="+s.id)
		}
		if s.env != nil {
			env = append(env, s.env(number)...)
		}
		var command []string
		if s.command != nil {
			command = s.command(number)
		}
		c.enter(s.role, args, env, command)
	}
	return c
}

// enter starts one process.
func (c *cast) enter(role string, args any, env, command []string) {
	c.t.Helper()
	self, err := os.Executable()
	require.NoError(c.t, err)
	text, err := json.Marshal(args)
	require.NoError(c.t, err)
	p := &process{out: new(bytes.Buffer)}
	words := append(slices.Clone(command), self)
	p.cmd = exec.Command(words[0], words[1:]...)
	p.cmd.Env = append(ownEnvironment(), append(env, roleVar+"="+role, argsVar+"="+string(text))...)
	if underRace {
		// The detector sees one process. Where data went out to another process and
		// what was made of it came back, it does not know that the one preceded
		// the other: see races.
		p.cmd.Env = append(p.cmd.Env, "GORACE=exitcode=0")
	}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	reader, writer, err := os.Pipe()
	require.NoError(c.t, err)
	p.cmd.ExtraFiles = []*os.File{writer}
	p.cues, err = p.cmd.StdinPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, p.cmd.Start())
	writer.Close()
	number := len(c.processes)
	c.processes = append(c.processes, p)
	go c.listen(number, p, reader)
}

// ownEnvironment is this process's without what would give a child a place.
func ownEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		for _, prefix := range []string{"OMPI_", "PMIX_", "PMI_", "MPI_", "SLURM", "GOLLECTIVE_", "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "JOB_COMPLETION"} {
			if strings.HasPrefix(v, prefix) {
				return true
			}
		}
		return false
	})
}

func (c *cast) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *cast) listen(number int, p *process, from *os.File) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var r report
		if json.Unmarshal(line, &r) == nil {
			r.Process = number
			c.change(func() { p.reports = append(p.reports, r) })
		}
	}
	from.Close()
	_ = p.cmd.Wait()
	c.change(func() { p.ended, p.code, p.expired = true, p.cmd.ProcessState.ExitCode(), time.Now() })
}

// clear ends all that have not ended, and waits.
func (c *cast) clear() {
	for _, p := range c.processes {
		c.mu.Lock()
		ended := p.ended
		c.mu.Unlock()
		if !ended {
			_ = p.cmd.Process.Kill()
		}
		_ = p.cues.Close()
	}
	c.until("the end of all processes", func() bool {
		return !slices.ContainsFunc(c.processes, func(p *process) bool { return !p.ended })
	})
}

// until waits for something that reports and ends of processes make true.
func (c *cast) until(what string, done func() bool) {
	c.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		c.mu.Lock()
		ok, changed := done(), c.changed
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			c.t.Fatalf("waited %v for %s\n%s", patience, what, c.dump())
		}
	}
}

// dump is all that is known, with the stacks of the processes that run.
func (c *cast) dump() string {
	for _, p := range c.processes {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	}
	time.Sleep(2 * time.Second)
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for number, p := range c.processes {
		fmt.Fprintf(&b, "--- process %d (ended %v, code %d)\n", number, p.ended, p.code)
		for _, r := range p.reports {
			line, _ := json.Marshal(r)
			fmt.Fprintf(&b, "%s\n", line)
		}
		if p.ended { // else its buffer is still written
			text := p.out.String()
			fmt.Fprintf(&b, "%s\n", text[:min(len(text), 20_000)])
		}
	}
	return b.String()
}

// reported waits until each of the processes has reported what, and returns the
// latest of these reports. A process that ends or fails before is a failure of
// the test.
func (c *cast) reported(what string, numbers ...int) []report {
	c.t.Helper()
	reports := make([]report, len(numbers))
	var failed string
	c.until(fmt.Sprintf("%q of processes %v", what, numbers), func() bool {
		all := true
		for i, number := range numbers {
			p := c.processes[number]
			found := false
			for _, r := range p.reports {
				if r.What == what {
					found, reports[i] = true, r
				}
				if r.What == "failed" && what != "failed" {
					failed = fmt.Sprintf("process %d failed: %s", number, r.Error.Text)
				}
			}
			if !found && p.ended && failed == "" {
				failed = fmt.Sprintf("process %d ended with code %d before %q", number, p.code, what)
			}
			all = all && found
		}
		return all || failed != ""
	})
	if failed != "" {
		c.t.Fatalf("%s\n%s", failed, c.dump())
	}
	return reports
}

// all are the numbers of the processes.
func (c *cast) all() []int {
	numbers := make([]int, len(c.processes))
	for i := range numbers {
		numbers[i] = i
	}
	return numbers
}

// others are all but the given ones.
func (c *cast) others(out ...int) []int {
	return slices.DeleteFunc(c.all(), func(n int) bool { return slices.Contains(out, n) })
}

// cue gives the processes a cue.
func (c *cast) cue(what string, numbers ...int) {
	for _, number := range numbers {
		_, _ = io.WriteString(c.processes[number].cues, what+"\n") // one that is gone needs no cue
	}
}

func (c *cast) signal(s syscall.Signal, numbers ...int) time.Time {
	c.t.Helper()
	at := time.Now()
	for _, number := range numbers {
		err := c.processes[number].cmd.Process.Signal(s)
		if errors.Is(err, os.ErrProcessDone) {
			continue // the end of the others was its own
		}
		require.NoError(c.t, err)
	}
	return at
}

// succeed waits until the processes have ended, which they must do with 0.
func (c *cast) succeed(numbers ...int) {
	c.t.Helper()
	c.until(fmt.Sprintf("the end of processes %v", numbers), func() bool {
		return !slices.ContainsFunc(numbers, func(n int) bool { return !c.processes[n].ended })
	})
	for _, number := range numbers {
		if p := c.processes[number]; p.code != 0 {
			c.t.Fatalf("process %d ended with code %d\n%s", number, p.code, c.dump())
		}
		require.Empty(c.t, races(c.processes[number].out.String()))
	}
}

// races are the reports of the race detector in a process's output, without those
// about buffers that primitives read and write: the order of these is given by
// other processes.
func races(output string) (reports []string) {
	for _, part := range strings.Split(output, "==================") {
		if strings.Contains(part, "DATA RACE") && !strings.Contains(part, "gollective/proto.") {
			reports = append(reports, part)
		}
	}
	return reports
}

// sharedFiles lists where named segments of shared memory would be.
func sharedFiles(t testing.TB) []string {
	t.Helper()
	found, err := filepath.Glob("/dev/shm/*gollective*")
	require.NoError(t, err)
	return found
}

// everyLocal runs body for each of a process's ranks in a goroutine of its own.
func everyLocal(comms []*collective.Comm, body func(*collective.Comm) error) error {
	errs := make([]error, len(comms))
	var ranks sync.WaitGroup
	for i, c := range comms {
		ranks.Go(func() {
			if err := body(c); err != nil {
				errs[i] = fmt.Errorf("rank %d: %w", c.Rank(), err)
			}
		})
	}
	ranks.Wait()
	return errors.Join(errs...)
}

func closeAll(comms []*collective.Comm) error {
	return everyLocal(comms, func(c *collective.Comm) error { return c.Close() })
}

// joined is the communicator of a process with the given number of ranks, and the
// check that nothing of it is left behind.
func joined(ranks int, config collective.Config, body func([]*collective.Comm) error) error {
	before := tracesNow()
	comms, err := collective.InitLocal(context.Background(), ranks, config)
	if err != nil {
		return err
	}
	if err := body(comms); err != nil {
		return err
	}
	if err := closeAll(comms); err != nil {
		return err
	}
	runtime.GC()
	return before.left()
}
