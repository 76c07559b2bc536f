package herd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Config says what to run.
type Config struct {
	// Command is the program, looked up as a shell would, and its arguments.
	Command []string
	// Ranks is how many processes to start, at least 1.
	Ranks int
	// Environ is the whole environment of a rank as NAME=VALUE, the last value of
	// a name counts. nil is the launcher's own for all.
	Environ func(rank int) []string
	// Label is LabelAuto if empty.
	Label Label
	// Grace is the time between SIGTERM and SIGKILL; 0 kills at once.
	Grace time.Duration
	// Stdin is for rank 0; nil is /dev/null.
	Stdin *os.File
	// Stdout and Stderr get the ranks' output; Stderr also what the launcher
	// itself has to say, each line after Name and a colon.
	Stdout, Stderr io.Writer
	Name           string
	// Keeper is a command that calls Keep. nil goes without: then descendants of
	// ranks, and on systems other than Linux the ranks, survive a launcher that
	// is killed.
	Keeper []string
}

// Exit statuses of shells.
const (
	statusFailed     = 1
	statusCannotRun  = 126
	statusNotFound   = 127
	statusSignalBase = 128
)

// StartError says that a process could not be started. Status is 127 when there
// is no such program, else 126.
type StartError struct {
	Status int
	Err    error
}

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// samePress is how far apart two SIGINTs may be and still come from one Ctrl-C:
// the terminal sends one, and a parent like timeout(1) may pass its own on.
const samePress = 100 * time.Millisecond

// noticeAfter is how long ranks may take to end before the user is told that
// they are being waited for.
const noticeAfter = time.Second

type herd struct {
	Config
	path     string
	out, err *sink
	keeper   *keeper
	stdin    *os.File // rank 0's, nil for /dev/null

	signals <-chan os.Signal
	started chan error // the starting is over
	ends    chan *rank // a rank has ended
	broken  chan error // output can't be written
	over    chan struct{}
	killing chan struct{} // closed: no grace any more
	swept   sync.WaitGroup
	drained sync.WaitGroup

	mu     sync.Mutex
	ranks  []*rank     // those that have been started, in order
	ending bool        // no more are started
	passed []os.Signal // what those started from now on have missed

	// Of the supervising goroutine alone:
	live        int
	allStarted  bool
	first       *rank // that failed
	status      int   // of a job that no rank has made fail
	cause       error // of that status, where it's worth telling
	interrupted time.Time
	killed      bool // killing is closed
	grace       *time.Timer
	notice      *time.Timer
}

// rank is one process.
type rank struct {
	number  int
	cmd     *exec.Cmd
	running bool // guarded by the herd's mu; the process has not been collected
	// end is set before the rank is sent to ends.
	end     ending
	streams []*stream
}

// ending is how a process ended.
type ending struct {
	status int // as a shell tells it
	how    string
}

// Run starts the ranks and returns when all have ended, with the exit status of
// the job: 0, or that of the rank that failed first. Which one that was and how
// it ended is said on Stderr. When a process can't be started the error is a
// *StartError, and those that had been started are ended. A done ctx ends the
// job as the failure of a rank does.
//
// While it runs, Run has the signals that doc.go lists.
func Run(ctx context.Context, c Config) (status int, err error) {
	if len(c.Command) == 0 || c.Ranks < 1 {
		return statusFailed, errors.New("nothing to start")
	}
	if c.Label == "" {
		c.Label = LabelAuto
	}
	h := &herd{Config: c,
		started: make(chan error, 1), ends: make(chan *rank, c.Ranks), broken: make(chan error, 2),
		over: make(chan struct{}), killing: make(chan struct{}),
		grace: stoppedTimer(), notice: stoppedTimer(),
	}
	if h.path, err = lookUp(c.Command[0]); err != nil {
		return 0, err
	}
	broken := func(err error) { h.broken <- err }
	h.out = newSink(c.Stdout, c.Label, c.Ranks, broken)
	h.err = newSink(c.Stderr, c.Label, c.Ranks, broken)

	var stopSignals func()
	h.signals, stopSignals = listen()
	defer stopSignals()
	if h.keeper, err = startKeeper(c.Keeper); err != nil {
		return 0, &StartError{statusCannotRun, fmt.Errorf("start the keeper: %w", err)}
	}
	defer h.keeper.close()
	var stopInput func()
	if h.stdin, stopInput, err = input(c.Stdin); err != nil {
		return 0, &StartError{statusCannotRun, fmt.Errorf("standard input: %w", err)}
	}
	defer stopInput()

	go h.startAll()
	err = h.supervise(ctx)
	close(h.over)
	patient := h.drain()
	switch {
	case err != nil:
		return 0, err
	case h.first == nil && h.cause != nil && patient:
		h.say("the output can't be written: %v", h.cause)
	case h.first != nil && patient:
		h.say("%v failed first: %s", h.first, h.first.end.how)
	}
	if h.first != nil {
		return h.first.end.status, nil
	}
	return h.status, nil
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// lookUp finds the program and tells apart what shells tell apart.
func lookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	status := statusCannotRun
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		status = statusNotFound
	}
	var inner *exec.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return "", &StartError{status, fmt.Errorf("cannot start %s: %w", name, err)}
}

// startAll starts the ranks in their order. The kernel takes the end of the
// thread that started a process for the end of its parent, so this one stays.
func (h *herd) startAll() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var err error
	for number := range h.Ranks {
		if err = h.start(number); err != nil {
			break
		}
	}
	if h.stdin != nil && h.stdin != h.Stdin {
		h.stdin.Close()
	}
	h.started <- err
	<-h.over
}

// start does nothing once the job is being ended.
func (h *herd) start(number int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ending {
		return nil
	}
	cannot := func(err error) error {
		return &StartError{statusCannotRun, fmt.Errorf("cannot start rank %d, %s: %w", number, h.path, err)}
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return cannot(err)
	}
	defer outWrite.Close()
	errRead, errWrite, err := os.Pipe()
	if err != nil {
		outRead.Close()
		return cannot(err)
	}
	defer errWrite.Close()
	r := &rank{number: number, cmd: &exec.Cmd{
		Path: h.path, Args: h.Command, Stdout: outWrite, Stderr: errWrite, SysProcAttr: attributes(),
	}}
	if h.Environ != nil {
		r.cmd.Env = h.Environ(number)
	}
	if number == 0 && h.stdin != nil {
		r.cmd.Stdin = h.stdin
	}
	if err := r.cmd.Start(); err != nil {
		outRead.Close()
		errRead.Close()
		return cannot(startCause(h.path, err))
	}
	r.running = true
	h.keeper.add(r.cmd.Process.Pid)
	h.ranks = append(h.ranks, r)
	for _, s := range h.passed {
		signalGroup(r.cmd.Process, s)
	}
	h.read(r, outRead, h.out)
	h.read(r, errRead, h.err)
	h.swept.Go(func() { h.await(r) })
	return nil
}

// startCause: what the system calls "no such file" can't be the program itself,
// which has just been found.
func startCause(path string, err error) error {
	var inner *os.PathError
	if errors.As(err, &inner) {
		err = inner.Err
	}
	if _, missing := os.Stat(path); errors.Is(err, os.ErrNotExist) && missing == nil {
		return fmt.Errorf("its interpreter, or loader: %w", err)
	}
	return err
}

func (h *herd) read(r *rank, from *os.File, to *sink) {
	s := &stream{r: from, to: to, rank: r.number}
	r.streams = append(r.streams, s)
	h.drained.Go(s.run)
}

// await waits for the rank's process and then for what it has left behind.
func (h *herd) await(r *rank) {
	state, err := collect(r.cmd.Process, &h.mu, &r.running)
	r.end = endingOf(state, err)
	h.ends <- r
	h.sweep(r)
	h.keeper.remove(r.cmd.Process.Pid)
}

const sweepEvery = 20 * time.Millisecond

// killedBy is how long a group may take to vanish after SIGKILL before it is
// left alone: processes in uninterruptible sleep take as long as they like.
const killedBy = 5 * time.Second

// sweep ends the processes that are left of a group.
func (h *herd) sweep(r *rank) {
	pid := r.cmd.Process.Pid
	if !endLeftover(pid) {
		return
	}
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	deadline, killing, killed := time.Now().Add(h.Grace), h.killing, false
	for leftover(pid) {
		select {
		case <-tick.C:
		case <-killing:
			deadline, killing = time.Now(), nil
		}
		if time.Now().Before(deadline) {
			continue
		}
		if killed {
			return
		}
		killLeftover(pid)
		deadline, killing, killed = time.Now().Add(killedBy), nil, true
	}
}

// supervise returns when no rank runs. Its error is that of starting them.
func (h *herd) supervise(ctx context.Context) (failure error) {
	done := ctx.Done()
	for !h.allStarted || h.live > 0 {
		select {
		case failure = <-h.started:
			h.allStarted = true
			h.mu.Lock()
			h.live += len(h.ranks)
			h.mu.Unlock()
			if failure != nil {
				h.end(0)
			}
		case r := <-h.ends:
			h.live--
			if r.end.status != 0 && h.first == nil {
				// Those that we have ended come after the cause.
				if h.status == 0 {
					h.first = r
				}
				h.end(0)
			}
		case s := <-h.signals:
			h.signal(s)
		case err := <-h.broken:
			h.endUnwritable(err)
		case <-done:
			done = nil
			h.end(statusFailed)
		case <-h.grace.C:
			if left := h.running(); h.Grace > 0 && left != "" {
				h.note("%s still running %v after SIGTERM: killed", left, h.Grace)
			}
			h.kill()
		case <-h.notice.C:
			h.note("%s waiting up to %v for %s to end", h.reason(), h.Grace, h.running())
		}
	}
	h.grace.Stop()
	h.notice.Stop()
	return failure
}

// end asks all ranks to end. A status other than 0 is the job's if no rank has
// failed before.
func (h *herd) end(status int) {
	if h.ending {
		return
	}
	h.mu.Lock()
	h.ending = true
	h.mu.Unlock()
	if h.first == nil {
		h.status = status
	}
	h.signalAll(terminate)
	h.signalAll(proceed) // a stopped process would never notice
	h.grace.Reset(h.Grace)
	h.notice.Reset(noticeAfter)
}

func (h *herd) signal(s os.Signal) {
	switch role(s) {
	case roleStop:
		h.signalAll(s)
		stopSelf()
	case roleContinue:
		h.signalAll(s)
	case roleInterrupt:
		now := time.Now()
		if now.Sub(h.interrupted) < samePress {
			return
		}
		again := !h.interrupted.IsZero()
		h.interrupted = now
		if again || h.ending {
			h.kill()
			return
		}
		h.pass(s)
	default:
		h.pass(s)
	}
}

// pass passes a signal on to all ranks, also to those yet to be started: a
// terminal's Ctrl-C would have ended the job and not the part that existed.
func (h *herd) pass(s os.Signal) {
	h.mu.Lock()
	h.passed = append(h.passed, s)
	h.mu.Unlock()
	h.signalAll(s)
}

func (h *herd) kill() {
	h.mu.Lock()
	h.ending = true
	h.mu.Unlock()
	if !h.killed {
		h.killed = true
		close(h.killing)
	}
	h.notice.Stop()
	h.signalAll(kill)
}

func (h *herd) signalAll(s os.Signal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.ranks {
		if r.running {
			signalGroup(r.cmd.Process, s)
		}
	}
}

// drain returns when what the ranks left behind has ended and all output has been
// written, or, with false, when the user has lost patience with the latter.
func (h *herd) drain() bool {
	h.wait(&h.swept, func() bool { h.kill(); return true })
	h.mu.Lock()
	for _, r := range h.ranks {
		for _, s := range r.streams {
			s.finish()
		}
	}
	h.mu.Unlock()
	return h.wait(&h.drained, func() bool { return false })
}

// wait waits for g, and asks at every SIGINT whether to go on; false when not.
func (h *herd) wait(g *sync.WaitGroup, interrupted func() bool) bool {
	done := make(chan struct{})
	go func() {
		g.Wait()
		close(done)
	}()
	for {
		select {
		case <-done:
			return true
		case s := <-h.signals:
			switch role(s) {
			case roleStop:
				stopSelf()
			case roleInterrupt:
				now := time.Now()
				same := now.Sub(h.interrupted) < samePress
				h.interrupted = now
				if !same && !interrupted() {
					return false
				}
			}
		case err := <-h.broken:
			h.endUnwritable(err)
		}
	}
}

// endUnwritable ends the job as the system ends a program whose output nobody
// reads, or says why it can't be written.
func (h *herd) endUnwritable(err error) {
	if status, ok := pipeStatus(err); ok {
		h.end(status)
		return
	}
	if h.first == nil && h.cause == nil {
		h.cause = err
	}
	h.end(statusFailed)
}

func (r *rank) String() string {
	return fmt.Sprintf("rank %d (pid %d)", r.number, r.cmd.Process.Pid)
}

func (h *herd) reason() string {
	if h.first == nil {
		return ""
	}
	return fmt.Sprintf("%v failed first: %s;", h.first, h.first.end.how)
}

// running is "rank 3" or "ranks 0, 2, 3"; "" when none runs.
func (h *herd) running() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var numbers []string
	for _, r := range h.ranks {
		if r.running {
			numbers = append(numbers, strconv.Itoa(r.number))
		}
	}
	switch len(numbers) {
	case 0:
		return ""
	case 1:
		return "rank " + numbers[0]
	}
	return "ranks " + strings.Join(numbers, ", ")
}

func (h *herd) say(format string, args ...any) {
	line := strings.TrimSpace(fmt.Sprintf(format, args...))
	h.err.write(nobody, []byte(h.Name+": "+line+"\n"))
}

// note says something while the ranks run: signals must not wait for whoever
// reads standard error.
func (h *herd) note(format string, args ...any) {
	h.drained.Go(func() { h.say(format, args...) })
}
