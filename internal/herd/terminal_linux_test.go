package herd

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// person is somebody in front of a pseudo terminal.
type person struct {
	t      *testing.T
	keys   *os.File
	mu     sync.Mutex
	screen strings.Builder
	done   chan struct{}
}

// sitDown runs a job on a terminal of its own, without a shell.
func sitDown(t *testing.T, j job) (*person, *exec.Cmd) {
	t.Helper()
	cmd := launcher(t, j)
	return sitDownWith(t, cmd), cmd
}

func sitDownWith(t *testing.T, cmd *exec.Cmd) *person {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { keys.Close() })
	fd, err := descriptor(keys)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	defer tty.Close()

	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	p := &person{t: t, keys: keys, done: make(chan struct{})}
	go p.watch()
	t.Cleanup(func() { keys.Close(); <-p.done })
	return p
}

func (p *person) watch() {
	defer close(p.done)
	buf := make([]byte, 4096)
	for {
		n, err := p.keys.Read(buf)
		p.mu.Lock()
		p.screen.Write(buf[:n])
		p.mu.Unlock()
		if err != nil { // EIO: nobody has the terminal any more
			return
		}
	}
}

func (p *person) types(keys string) {
	p.t.Helper()
	_, err := io.WriteString(p.keys, keys)
	require.NoError(p.t, err)
}

// sees waits until the screen shows text so many times.
func (p *person) sees(text string, times int) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return strings.Count(p.screen.String(), text) >= times
	}, bound, 5*time.Millisecond, "waiting for %q", text)
}

func TestATerminalIsReadForRankZero(t *testing.T) {
	p, cmd := sitDown(t, job{Command: ranks("cat"), Ranks: 3, Label: LabelAlways})
	p.types("hello\nworld\n\x04")
	assert.Equal(t, 0, statusOf(t, cmd))
	<-p.done
	p.sees(`[0] read "hello\nworld\n"`, 1)
	p.sees(`[2] read ""`, 1)
}

func TestARankThatDoesNotReadTheTerminalIsNotWaitedFor(t *testing.T) {
	_, cmd := sitDown(t, job{Command: ranks("print:x\n"), Ranks: 2})
	assert.Equal(t, 0, statusOf(t, cmd))
}

func TestCtrlC(t *testing.T) {
	p, cmd := sitDown(t, job{Command: ranks("tell:SIGINT", "print:ready\n", "wait"), Ranks: 3, Label: LabelNever})
	p.sees("ready", 3)
	p.types("\x03")
	p.sees("got SIGINT", 3)
	time.Sleep(2 * samePress) // another press, and not a bouncing key
	p.types("\x03")
	assert.Equal(t, 128+9, statusOf(t, cmd))
	p.sees("killed by SIGKILL", 1)
}

func TestHangUp(t *testing.T) {
	p, cmd := sitDown(t, job{Command: ranks("pid", "wait"), Ranks: 2, Label: LabelNever})
	p.sees("pid", 2)
	p.mu.Lock()
	pids := pidsIn(strings.ReplaceAll(p.screen.String(), "\r", ""))
	p.mu.Unlock()
	require.Len(t, pids, 2)
	p.keys.Close()
	assert.Equal(t, 128+1, statusOf(t, cmd))
	requireGone(t, pids)
}

// Ctrl-Z stops the ranks and the launcher, and whoever continues the launcher
// continues all.
func TestStoppingAndContinuing(t *testing.T) {
	cmd := launcher(t, job{Command: ranks("pid", "wait"), Ranks: 2, Label: LabelNever})
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	pids := append(pidsIn(strings.Join(awaitLines(out, 2), "\n")), cmd.Process.Pid)
	require.Len(t, pids, 3)
	allBecome := func(states string) {
		for _, pid := range pids {
			require.Eventually(t, func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				require.NoError(t, err)
				state, _, _ := parseStat(stat)
				return strings.ContainsRune(states, rune(state))
			}, bound, 5*time.Millisecond, "process %d is to be in one of the states %s", pid, states)
		}
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTSTP))
	allBecome("T")
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	allBecome("SR")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 128+15, statusOf(t, cmd))
}

// In the background the launcher must neither be stopped for reading the terminal
// nor take what is typed for others; back in the foreground it reads again.
func TestATerminalIsLeftAloneInTheBackground(t *testing.T) {
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash for its job control")
	}
	const script = `set -m
"$@" &
read line
echo "shell read $line"
fg >/dev/null`
	job := launcher(t, job{Command: ranks("0/print:ready\n", "cat"), Ranks: 2})
	cmd := exec.Command(shell, append([]string{"-c", script, "shell"}, job.Args...)...)
	p := sitDownWith(t, cmd)
	p.sees("ready", 1)
	p.types("for the shell\n")
	p.sees("shell read for the shell", 1)
	p.types("for rank 0\n\x04")
	assert.Equal(t, 0, statusOf(t, cmd))
	p.sees(`read "for rank 0\n"`, 1)
}
