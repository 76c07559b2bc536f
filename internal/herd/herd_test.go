//go:build unix

package herd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExitStatus(t *testing.T) {
	for _, tc := range []struct {
		name   string
		ranks  int
		steps  []string
		status int
		errs   string // a pattern
	}{
		{"all good", 3, nil, 0, `^$`},
		{"one rank fails and ends those that wait", 4, []string{"2/exit:3", "wait"}, 3, `^herd: rank 2 \(pid \d+\) failed first: exit status 3\n$`},
		{"a signal is 128 more", 2, []string{"1/kill:SIGKILL", "wait"}, 137, `^herd: rank 1 \(pid \d+\) failed first: killed by SIGKILL\n$`},
		{"rank 0 is like any other", 2, []string{"0/kill:SIGTERM", "wait"}, 143, `failed first: killed by SIGTERM\n$`},
		{"who ends well ends nobody else", 3, []string{"1/exit:0", "2/print:x\n", "2/exit:4", "wait"}, 4, `rank 2 .* exit status 4\n$`},
		{"a stopped rank ends, too", 2, []string{"0/stop", "1/exit:5", "wait"}, 5, `rank 1 .* exit status 5\n$`},
		{"alone", 1, []string{"exit:9"}, 9, `rank 0 .* exit status 9\n$`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, _, errs := run(t, job{Command: ranks(tc.steps...), Ranks: tc.ranks}, nil)
			assert.Equal(t, tc.status, status)
			assert.Regexp(t, tc.errs, errs)
		})
	}
}

func TestRanksThatIgnoreSIGTERMAreKilled(t *testing.T) {
	c := job{Command: ranks("!1/ignore:SIGTERM", "print:.\n", "1/wait", "wait"), Ranks: 3}
	read, write := io.Pipe()
	var errs bytes.Buffer
	config := c.config()
	config.Grace, config.Stdout, config.Stderr = 50*time.Millisecond, write, &errs
	// Only when all have set up what they ignore may rank 1 be ended.
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		awaitLines(read, 3)
		cancel()
		_, _ = io.Copy(io.Discard, read)
	}()
	status, err := Run(ctx, config)
	write.Close()
	require.NoError(t, err)
	assert.Equal(t, statusFailed, status)
	assert.Contains(t, errs.String(), "herd: ranks 0, 2 still running 50ms after SIGTERM: killed\n")
}

// awaitLines reads n lines.
func awaitLines(from io.Reader, n int) []string {
	var lines []string
	for in := bufio.NewScanner(from); len(lines) < n && in.Scan(); {
		lines = append(lines, in.Text())
	}
	return lines
}

func TestOutputOfManyRanksKeepsItsLines(t *testing.T) {
	const n, lines = 16, 400
	status, out, errs := run(t, job{Command: ranks("flood:" + strconv.Itoa(lines)), Ranks: n, Label: LabelAlways}, nil)
	require.Equal(t, 0, status, errs)
	for _, text := range []string{out, errs} {
		var next [n]int
		for line := range strings.Lines(text) {
			var label, rank, i int
			_, err := fmt.Sscanf(line, "[%d] <%d %d", &label, &rank, &i)
			require.NoError(t, err, "%.80q", line)
			want := fmt.Sprintf("%-5s<%d %d %s>\n", prefix(rank), rank, i, strings.Repeat(strconv.Itoa(rank), i*37%301))
			require.Equal(t, want, line)
			require.Equal(t, next[rank], i, "rank %d", rank)
			next[rank]++
		}
		for rank := range n {
			require.Equal(t, lines, next[rank], "rank %d", rank)
		}
	}
}

func TestRankZeroAloneIsPassedOnByteForByte(t *testing.T) {
	text := "# header\n\n\tcolumns  \r\nno break at the end \x01"
	status, out, errs := run(t, job{Command: ranks("0/print:"+text, "1/eprint:other stream\n"), Ranks: 4}, nil)
	assert.Equal(t, 0, status)
	assert.Equal(t, text, out)
	assert.Equal(t, "[1] other stream\n", errs)
}

func TestAnUnfinishedLineOfRankZeroIsShown(t *testing.T) {
	cmd := launcher(t, job{Command: ranks("0/print:name? ", "0/cat"), Ranks: 2})
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	question := make([]byte, 6)
	_, err = io.ReadFull(out, question) // while the rank waits for the answer
	require.NoError(t, err)
	assert.Equal(t, "name? ", string(question))
	fmt.Fprint(in, "gollective")
	in.Close()
	rest, err := io.ReadAll(out)
	require.NoError(t, err)
	assert.Equal(t, "read \"gollective\"\n", string(rest))
	assert.Equal(t, 0, statusOf(t, cmd))
}

func TestVeryLongLinesAreCutAndNotLost(t *testing.T) {
	long := strings.Repeat("x", longestLine*2+5)
	script := fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo", len(long))
	var out, errs bytes.Buffer
	c := job{Command: []string{"sh", "-c", script}, Ranks: 2, Label: LabelAlways}.config()
	c.Stdout, c.Stderr = &out, &errs
	status, err := Run(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, 0, status, errs.String())
	assert.Equal(t, 2*len(long), strings.Count(out.String(), "x"))
	for line := range strings.Lines(out.String()) {
		require.Regexp(t, `^\[[01]\] x*\n$`, line)
	}
}

// slowReader takes nothing until it is released.
type slowReader struct {
	bytes.Buffer
	released chan struct{}
}

func (s *slowReader) Write(text []byte) (int, error) {
	<-s.released
	return s.Buffer.Write(text)
}

func TestOutputOfRanksThatHaveEndedWaitsForASlowReader(t *testing.T) {
	out := &slowReader{released: make(chan struct{})}
	var errs bytes.Buffer
	// As much as fits into the pipe besides what the launcher has read.
	c := job{Command: []string{"sh", "-c", "yes 123456 | head -n 9500"}, Ranks: 2}.config()
	c.Stdout, c.Stderr = out, &errs
	time.AfterFunc(lastWords+lastWords/2, func() { close(out.released) })
	status, err := Run(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, 0, status, errs.String())
	assert.Equal(t, 2*9500, strings.Count(out.String(), "123456\n"))
}

func TestStandardInputIsForRankZero(t *testing.T) {
	for name, stdin := range map[string]io.Reader{
		"a pipe":  strings.NewReader("one\ntwo"),
		"a file":  file(t, "one\ntwo"),
		"nothing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			status, out, errs := run(t, job{Command: ranks("cat"), Ranks: 3, Label: LabelAlways}, stdin)
			require.Equal(t, 0, status, errs)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			sort.Strings(lines)
			first := `[0] read "one\ntwo"`
			if stdin == nil {
				first = `[0] read ""`
			}
			assert.Equal(t, []string{first, `[1] read ""`, `[2] read ""`}, lines)
		})
	}
}

func file(t *testing.T, text string) *os.File {
	name := filepath.Join(t.TempDir(), "input")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	f, err := os.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestWhatCannotBeStarted(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	for _, tc := range []struct {
		name, program string
		status        int
		text          string
	}{
		{"not in PATH", "no-such-program", statusNotFound, "cannot start no-such-program: executable file not found"},
		{"no such file", filepath.Join(dir, "absent"), statusNotFound, "absent: no such file"},
		{"not executable", write("data", "x", 0o600), statusCannotRun, "data: permission denied"},
		{"a directory", dir, statusCannotRun, "is a directory"},
		{"not a program", write("text", "x", 0o700), statusCannotRun, "cannot start rank 0, " + filepath.Join(dir, "text") + ": exec format error"},
		{"interpreter missing", write("script", "#!/no/such/interpreter\n", 0o700), statusCannotRun, "its interpreter, or loader: no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := job{Command: []string{tc.program}, Ranks: 2}.config()
			_, err := Run(t.Context(), c)
			var start *StartError
			require.ErrorAs(t, err, &start)
			assert.Equal(t, tc.status, start.Status)
			assert.Contains(t, err.Error(), tc.text)
		})
	}
	_, err := Run(t.Context(), Config{Ranks: 1})
	assert.Error(t, err)
	_, err = Run(t.Context(), Config{Command: []string{"true"}})
	assert.Error(t, err)
}

func TestRanksStartedBeforeAFailureToStartAreEnded(t *testing.T) {
	c := job{Command: ranks("wait"), Ranks: 3}.config()
	// The third rank's environment is more than the system takes.
	c.Environ = func(rank int) []string {
		if rank < 2 {
			return os.Environ()
		}
		return append(os.Environ(), "HUGE="+strings.Repeat("x", 64<<20))
	}
	_, err := Run(t.Context(), c)
	assert.ErrorIs(t, err, syscall.E2BIG)
	assert.ErrorContains(t, err, "cannot start rank 2")
}

func TestSignalsArePassedOnToAll(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		t.Run(signalName(s), func(t *testing.T) {
			const n = 3
			cmd := launcher(t, job{Command: ranks("tell:"+signalName(s), "print:ready\n", "wait"), Ranks: n, Label: LabelNever})
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			require.Len(t, awaitLines(out, n), n)
			require.NoError(t, cmd.Process.Signal(s))
			assert.Equal(t, []string{"got " + signalName(s), "got " + signalName(s), "got " + signalName(s)}, awaitLines(out, n))
			if s != syscall.SIGTERM { // which ends them, and has their own status then
				require.NoError(t, cmd.Process.Kill())
				assert.Equal(t, -1, statusOf(t, cmd))
				return
			}
			assert.Equal(t, 7, statusOf(t, cmd))
		})
	}
}

func TestSignalsEndRanksThatDoNotHandleThem(t *testing.T) {
	cmd := launcher(t, job{Command: ranks("print:ready\n", "wait"), Ranks: 3})
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	awaitLines(out, 3)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	assert.Equal(t, 128+2, statusOf(t, cmd))
	assert.Regexp(t, `^herd: rank \d \(pid \d+\) failed first: killed by SIGINT\n$`, errs.String())
}

func TestASecondInterruptKills(t *testing.T) {
	const n = 2
	cmd := launcher(t, job{Command: ranks("tell:SIGINT", "print:ready\n", "wait"), Ranks: n, Label: LabelNever})
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	awaitLines(out, n)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, []string{"got SIGINT", "got SIGINT"}, awaitLines(out, n))
	// The next is another press of the keys only after a while.
	time.Sleep(2 * samePress)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	assert.Equal(t, 128+9, statusOf(t, cmd))
}

func TestAnInterruptKillsRanksThatAreBeingEnded(t *testing.T) {
	cmd := launcher(t, job{Command: ranks("0/ignore:SIGHUP", "0/ignore:SIGTERM", "0/ignore:SIGINT", "print:ready\n", "wait"), Ranks: 2})
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	errs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	awaitLines(out, 2)
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP)) // ends rank 1
	notice := awaitLines(errs, 1)
	require.Len(t, notice, 1)
	assert.Regexp(t, `^herd: rank 1 \(pid \d+\) failed first: killed by SIGHUP; waiting up to 30s for rank 0 to end$`, notice[0])
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	assert.Equal(t, 128+1, statusOf(t, cmd))
}

func TestADoneContextEndsTheJob(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := job{Command: ranks("wait"), Ranks: 2}.config()
	status, err := Run(ctx, c)
	require.NoError(t, err)
	assert.Equal(t, statusFailed, status)
}

func TestOutputThatNobodyReadsEndsTheJob(t *testing.T) {
	read, write, err := os.Pipe()
	require.NoError(t, err)
	read.Close()
	defer write.Close()
	var errs bytes.Buffer
	c := job{Command: ranks("print:x\n", "wait"), Ranks: 2}.config()
	c.Stdout, c.Stderr = write, &errs
	status, err := Run(t.Context(), c)
	require.NoError(t, err)
	assert.Equal(t, 128+13, status)
	assert.Empty(t, errs.String())

	c.Stdout = failing{errors.New("disk full")}
	status, err = Run(t.Context(), c)
	require.NoError(t, err)
	assert.Equal(t, statusFailed, status)
	assert.Equal(t, "herd: the output can't be written: disk full\n", errs.String())
}

func TestKeeperLines(t *testing.T) {
	pgid, add, err := parseKeeperLine("+123")
	require.NoError(t, err)
	assert.Equal(t, 123, pgid)
	assert.True(t, add)
	_, add, err = parseKeeperLine("-123")
	require.NoError(t, err)
	assert.False(t, add)
	for _, bad := range []string{"", "+", "123", "+0", "-1", "+-2", "+1", "+2147483648", "+12 ", "kill 12"} {
		_, _, err := parseKeeperLine(bad)
		assert.Error(t, err, bad)
	}
}

var pidLine = regexp.MustCompile(`(?m)pid (\d+)$`)

// pidsIn finds what the step pid has printed.
func pidsIn(text string) (pids []int) {
	for _, m := range pidLine.FindAllStringSubmatch(text, -1) {
		pids = append(pids, number(m[1]))
	}
	return pids
}
