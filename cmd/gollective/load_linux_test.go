package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// load as users run it, with processes as ranks, for a moment. What the environment
// says of waiting and transports has no part in it.
func TestLoad(t *testing.T) {
	binary, dir := build(t), t.TempDir()
	execute := func(args ...string) (status int, out, errs string) {
		cmd := exec.Command(binary, append([]string{"load", "--duration", "10ms", "--late-events", "1"}, args...)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOLLECTIVE_TRANSPORT=inproc", "GOLLECTIVE_WAIT=none", "GOLLECTIVE_PROXY=none",
			"GOLLECTIVE_SOCKET_RATE=none", "GOLLECTIVE_MAX_NCHANNELS=none", "GOLLECTIVE_ROOT=192.0.2.1:9")
		var o, e bytes.Buffer
		cmd.Stdout, cmd.Stderr = &o, &e
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			require.NoError(t, err)
		}
		return cmd.ProcessState.ExitCode(), o.String(), e.String()
	}

	t.Run("two ranks", func(t *testing.T) {
		status, out, errs := execute("--policies", "spin,block", "-o", "load.svg", "-J", "load.json")
		assert.Len(t, regexp.MustCompile(`(?m)^  (spin|block) +(thread|inline) `).FindAllString(out, -1), 6, out+errs)
		assert.Len(t, regexp.MustCompile(`(?m)^(PASS|FAIL)  `).FindAllString(out, -1), 10, out)
		if strings.Contains(out, "\nFAIL  ") {
			assert.Equal(t, failed, status)
			assert.Equal(t, "gollective load: claims don't hold on this machine\n", errs)
		} else {
			assert.Equal(t, good, status)
			assert.Empty(t, errs, "no progress where there is no terminal")
		}
		chart, err := os.ReadFile(filepath.Join(dir, "load.svg"))
		require.NoError(t, err)
		assert.Contains(t, string(chart), "CPU, % of one core")
		var document struct {
			Cases []struct{ Wait, Proxy string }
		}
		text, err := os.ReadFile(filepath.Join(dir, "load.json"))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &document))
		assert.Len(t, document.Cases, 6)
	})
	t.Run("three ranks", func(t *testing.T) {
		status, out, errs := execute("-n", "3", "--policies", "block", "--proxies", "inline")
		assert.Contains(t, []int{good, failed}, status, errs)
		assert.Contains(t, out, "# What waiting costs: 3 rank processes")
		assert.Equal(t, 1, strings.Count(out, "\n  block    inline "), out)
	})
	t.Run("a rank without a job", func(t *testing.T) {
		status, out, errs := execute("--rank", "{}")
		assert.Equal(t, failed, status)
		assert.Empty(t, out)
		assert.Equal(t, 1, strings.Count(errs, "\n"), errs)
	})
}

// Ctrl-C ends the ranks, too, and the run says that it was interrupted.
func TestLoadIsInterrupted(t *testing.T) {
	cmd := exec.Command(build(t), "load", "--duration", "1h", "--policies", "block", "-J", filepath.Join(t.TempDir(), "load.json"))
	out, err := cmd.StdoutPipe() // open as long as any process has it
	require.NoError(t, err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	require.NoError(t, cmd.Start())
	header := make([]byte, 1)
	_, err = out.Read(header)
	require.NoError(t, err)
	ended := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer ended.Stop()
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	var rest bytes.Buffer
	_, err = rest.ReadFrom(out)
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	assert.Equal(t, failed, cmd.ProcessState.ExitCode(), errs.String())
	assert.Contains(t, errs.String(), "context canceled")
	assert.NotContains(t, rest.String(), "PASS")
}
