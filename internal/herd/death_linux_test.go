package herd

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// alive looks at /proc: a process that is dead but not collected, which is
// the business of whoever adopted it, doesn't live.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state, _, ok := parseStat(stat)
	return !ok || state != 'Z' && state != 'X'
}

func requireGone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool { return !alive(pid) }, bound, 5*time.Millisecond, "process %d lives", pid)
	}
}

// Every rank has a child that the rank has left alone, and that ignores what can
// be ignored.
var family = ranks("child:ignore:SIGTERM+ignore:SIGHUP+pid+wait", "pid", "wait")

func TestNothingSurvivesALauncherThatIsKilled(t *testing.T) {
	const n = 16
	cmd := launcher(t, job{Command: family, Ranks: n, Label: LabelNever})
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	pids := pidsIn(strings.Join(awaitLines(out, 2*n), "\n"))
	require.Len(t, pids, 2*n)
	for _, pid := range pids {
		require.True(t, alive(pid))
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	requireGone(t, pids)
}

// Even without its keeper the launcher takes its ranks along.
func TestRanksDieWithTheirLauncherWithoutAKeeper(t *testing.T) {
	cmd := launcher(t, job{Command: ranks("pid", "wait"), Ranks: 3, Label: LabelNever})
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	pids := pidsIn(strings.Join(awaitLines(out, 3), "\n"))
	keepers := childrenOf(t, cmd.Process.Pid, argKeeper)
	require.Len(t, keepers, 1)
	require.NoError(t, syscall.Kill(keepers[0], syscall.SIGKILL))
	requireGone(t, keepers)
	for _, pid := range pids {
		require.True(t, alive(pid), "the keeper's death is nobody else's")
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	requireGone(t, pids)
}

func childrenOf(t *testing.T, pid int, argument string) (pids []int) {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	require.NoError(t, err)
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		for _, child := range strings.Fields(string(text)) {
			line, _ := os.ReadFile("/proc/" + child + "/cmdline")
			if strings.Contains(string(line), argument) {
				pids = append(pids, number(child))
			}
		}
	}
	return pids
}

func TestDescendantsAreEndedWithTheirRank(t *testing.T) {
	for name, tc := range map[string]struct {
		steps  []string
		status int
	}{
		"that ended well":       {[]string{"child:pid+wait", "exit:0"}, 0},
		"that failed":           {[]string{"child:pid+wait", "0/exit:3", "wait"}, 3},
		"and ignoring SIGTERM":  {[]string{"child:ignore:SIGTERM+pid+wait", "exit:0"}, 0},
		"and stopped":           {[]string{"child:pid+stop+wait", "exit:0"}, 0},
		"after many of its own": {[]string{"child:child:pid+pid+wait", "child:pid+wait", "exit:0"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			status, out, errs := run(t, job{Command: ranks(tc.steps...), Ranks: 3, Label: LabelNever, Grace: 200 * time.Millisecond}, nil)
			assert.Equal(t, tc.status, status, errs)
			for _, pid := range pidsIn(out) {
				assert.False(t, alive(pid), "process %d lives", pid)
			}
		})
	}
}

func TestADaemonThatHoldsTheOutputIsNotWaitedFor(t *testing.T) {
	status, out, errs := run(t, job{Command: ranks("daemon:pid+wait", "print:done\n"), Ranks: 2, Label: LabelNever}, nil)
	assert.Equal(t, 0, status, errs)
	assert.Equal(t, 2, strings.Count(out, "done\n"))
	for _, pid := range pidsIn(out) {
		assert.True(t, alive(pid), "it has left the group")
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func TestSignalsReachDescendants(t *testing.T) {
	cmd := launcher(t, job{Command: ranks("child:tell:SIGUSR1+print:ready\n+wait", "tell:SIGUSR1", "print:ready\n", "wait"), Ranks: 2, Label: LabelNever})
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	awaitLines(out, 4)
	require.NoError(t, cmd.Process.Signal(syscall.SIGUSR1))
	assert.Equal(t, []string{"got SIGUSR1", "got SIGUSR1", "got SIGUSR1", "got SIGUSR1"}, awaitLines(out, 4))
}

func TestParseStat(t *testing.T) {
	state, pgid, ok := parseStat([]byte("12 (a) S 1 (b)) R 1 34 34 0"))
	assert.True(t, ok)
	assert.Equal(t, byte('R'), state)
	assert.Equal(t, 34, pgid)
	for _, bad := range []string{"", "12", "12 (a", "12 (a) ", "12 (a) S 1", "12 (a) S 1 x"} {
		_, _, ok := parseStat([]byte(bad))
		assert.False(t, ok, bad)
	}
}
