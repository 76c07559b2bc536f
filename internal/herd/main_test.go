//go:build unix

package herd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// The test binary is also the launcher, the keeper and the ranks.
const (
	argLauncher = "test-launcher"
	argKeeper   = "test-keeper"
	argRank     = "test-rank"
	rankVar     = "GOLLECTIVE_TEST_RANK"
)

// bound is on what should take far less.
const bound = 30 * time.Second

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case argLauncher:
			os.Exit(launcherMain(os.Args[2]))
		case argKeeper:
			if err := Keep(os.Stdin); err != nil {
				os.Exit(1)
			}
			os.Exit(0)
		case argRank:
			os.Exit(rankMain(os.Args[2:]))
		}
	}
	handIgnoredSignals()
	// A program with the race detector sleeps for a second before it ends.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	goleak.VerifyTestMain(m)
}

// handIgnoredSignals: a shell starts what it puts into the background with SIGINT
// ignored, nohup does so with SIGHUP, and a launcher leaves that so. The launchers
// of the tests are to have the signals: they get the default of what is handled
// here.
func handIgnoredSignals() {
	for s := range roles {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// job is what a launcher in a process of its own is told.
type job struct {
	Command []string
	Ranks   int
	Label   Label
	Grace   time.Duration
}

func (j job) config() Config {
	if j.Grace == 0 {
		j.Grace = bound
	}
	return Config{
		Command: j.Command, Ranks: j.Ranks, Label: j.Label, Grace: j.Grace, Name: "herd",
		Keeper: []string{os.Args[0], argKeeper},
		Environ: func(rank int) []string {
			return append(os.Environ(), fmt.Sprintf("%s=%d", rankVar, rank))
		},
	}
}

func launcherMain(text string) int {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		panic(err)
	}
	c := j.config()
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	status, err := Run(context.Background(), c)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return statusFailed
	}
	return status
}

// ranks is the command whose ranks do the steps of rankMain.
func ranks(steps ...string) []string {
	return append([]string{os.Args[0], argRank}, steps...)
}

// launcher runs a job in a launcher of its own.
func launcher(t *testing.T, j job) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(j)
	require.NoError(t, err)
	// All that can hang in a test reads what the launcher writes.
	ctx, cancel := context.WithTimeout(context.Background(), 2*bound)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], argLauncher, string(text))
	t.Cleanup(func() {
		if cmd.Process != nil && cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

// run runs a job in a launcher of its own to the end.
func run(t *testing.T, j job, stdin io.Reader) (status int, out, errs string) {
	t.Helper()
	cmd := launcher(t, j)
	var o, e strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &o, &e
	require.NoError(t, cmd.Start())
	status = statusOf(t, cmd)
	return status, o.String(), e.String()
}

func statusOf(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	late := time.AfterFunc(bound, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	require.True(t, late.Stop(), "the launcher did not end within %v", bound)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode()
}
