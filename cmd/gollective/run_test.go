//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
)

// The test binary is also the command, and with this variable a rank that sums.
const sumVar = "GOLLECTIVE_TEST_SUM"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(sumVar) != "" && len(os.Args) == 1:
		if err := sum(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test."):
		os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr))
	default:
		os.Exit(m.Run())
	}
}

// sum makes communicators one after the other and adds up what the ranks bring.
func sum() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range len(os.Getenv(sumVar)) {
		c, err := collective.Init(ctx, collective.Config{})
		if err != nil {
			return err
		}
		v := []int64{int64(c.Rank()) + 1}
		if err := collective.AllReduce(ctx, c, v, v, collective.Sum); err != nil {
			return err
		}
		fmt.Printf("rank %d of %d: %d\n", c.Rank(), c.Size(), v[0])
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

// execute runs the command in a process of its own.
func execute(t *testing.T, env []string, args ...string) (status int, out, errs string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), env...)
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	require.NoError(t, ctx.Err())
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

func TestRunUsage(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{}, "accepted: 1 to 4096"},
		{[]string{"-n", "0", "x"}, "accepted: 1 to 4096"},
		{[]string{"-n", "4097", "x"}, "accepted: 1 to 4096"},
		{[]string{"-n", "two", "x"}, "accepted: --env --grace -h --label -n --transport"},
		{[]string{"-n", "2"}, "accepted: -n N [flags] -- PROGRAM"},
		{[]string{"-n", "2", "--"}, "accepted: -n N [flags] -- PROGRAM"},
		{[]string{"-n", "2", "--", ""}, "accepted: -n N [flags] -- PROGRAM"},
		{[]string{"-n", "2", "--transport", "udp", "x"}, "accepted: auto, shm, tcp"},
		{[]string{"-n", "2", "--grace", "5", "x"}, "accepted: a duration"},
		{[]string{"-n", "2", "--grace", "-5s", "x"}, "accepted: a duration"},
		{[]string{"-n", "2", "--label=sometimes", "x"}, "accepted: auto, always, never"},
		{[]string{"-n", "2", "--env", "A", "x"}, "accepted: NAME=VALUE"},
		{[]string{"-n", "2", "--env", "=A", "x"}, "accepted: NAME=VALUE"},
		{[]string{"-n", "2", "--env", "GOLLECTIVE_RANK=1", "x"}, "accepted: variables that run doesn't set"},
		{[]string{"-n", "2", "--fast", "x"}, "accepted: --env --grace"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			status, out, errs := command(append([]string{"run"}, tc.args...)...)
			assert.Equal(t, usage, status)
			assert.Empty(t, out)
			assert.Contains(t, errs, tc.want)
			assert.Equal(t, 1, strings.Count(errs, "\n"), "one line: %q", errs)
			assert.True(t, strings.HasPrefix(errs, "gollective run: "), errs)
		})
	}
}

func TestRunTellsRanksWhoTheyAre(t *testing.T) {
	const script = `echo $GOLLECTIVE_RANK $GOLLECTIVE_SIZE $GOLLECTIVE_LOCAL_RANK $GOLLECTIVE_LOCAL_SIZE` +
		` $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE ${GOLLECTIVE_COMM_ID%%.*} ${GOLLECTIVE_ROOT-none} $GOLLECTIVE_TRANSPORT $A "$@"`
	// What is left of other launchers and of other jobs doesn't count.
	env := []string{"RANK=7", "WORLD_SIZE=8", "GOLLECTIVE_RANK=9", "GOLLECTIVE_ROOT=localhost:1", "GOLLECTIVE_TRANSPORT=inproc"}
	status, out, errs := execute(t, env, "run", "-n", "2", "--label=never", "--transport", "auto", "--env", "A=a=b c",
		"--", "sh", "-c", script, "sh", "--", "-n", "5")
	require.Equal(t, good, status, errs)
	lines := strings.Split(out, "\n")
	sort.Strings(lines)
	assert.Equal(t, []string{"",
		"0 2 0 2 0 2 0 2 gollective1 none auto a=b c -- -n 5",
		"1 2 1 2 1 2 1 2 gollective1 none auto a=b c -- -n 5"}, lines)
}

func TestRunNeedsNoDashes(t *testing.T) {
	status, out, errs := execute(t, nil, "run", "-n", "1", "echo", "-n", "3", "--", "x")
	assert.Equal(t, good, status, errs)
	assert.Equal(t, "3 -- x", out)
}

func TestRunStatus(t *testing.T) {
	for _, tc := range []struct {
		args   []string
		status int
		errs   string
	}{
		{[]string{"sh", "-c", "exit $RANK"}, 1, `^gollective run: rank 1 \(pid \d+\) failed first: exit status 1\n$`},
		{[]string{"sh", "-c", "kill -9 $$"}, 137, `^gollective run: rank [01] \(pid \d+\) failed first: killed by SIGKILL\n$`},
		{[]string{"no-such-program"}, 127, `^gollective run: cannot start no-such-program: executable file not found in \$PATH\n$`},
		{[]string{"/"}, 126, `^gollective run: cannot start /: is a directory\n$`},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			status, out, errs := execute(t, nil, append([]string{"run", "-n", "2", "--"}, tc.args...)...)
			assert.Equal(t, tc.status, status)
			assert.Empty(t, out)
			assert.Regexp(t, tc.errs, errs)
		})
	}
}

// The whole way: processes that find each other through what run gives them.
func TestRunOfACollective(t *testing.T) {
	for _, ranks := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			status, out, errs := execute(t, []string{sumVar + "=1111"}, "run", "-n", fmt.Sprint(ranks), "--label=never", "--", os.Args[0])
			require.Equal(t, good, status, errs)
			for rank := range ranks {
				assert.Contains(t, out, fmt.Sprintf("rank %d of %d: %d\n", rank, ranks, ranks*(ranks+1)/2))
			}
		})
	}
}
