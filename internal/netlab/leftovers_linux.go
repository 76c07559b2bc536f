package netlab

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// Namespaces are called netlab-PID-START-…, after the process that made them: START is
// when it started, so that another one that gets the same number later is not taken
// for it.

// ownPrefix is what the names of this process's namespaces begin with.
func ownPrefix() string {
	start, _ := startOf(os.Getpid())
	return fmt.Sprintf("netlab-%d-%s", os.Getpid(), start)
}

// startOf is when a process started, in ticks since the boot.
func startOf(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The second field, the name, is in parentheses and may contain any.
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	fields := strings.Fields(rest)
	const start = 22 - 3 // see proc(5), which counts from 1; the third is the first of rest
	if len(fields) <= start {
		return "", fmt.Errorf("netlab: /proc/%d/stat is %q", pid, stat)
	}
	return fields[start], nil
}

// orphaned tells whether a namespace's name is that of a process that is no more.
func orphaned(name string) bool {
	var pid int
	var start string
	if n, _ := fmt.Sscanf(strings.ReplaceAll(name, "-", " "), "netlab %d %s", &pid, &start); n != 2 {
		return false
	}
	lives, err := startOf(pid)
	return err != nil && os.IsNotExist(err) || err == nil && lives != start
}

// removeLeftovers removes, once per process, what killed processes left behind.
var removeLeftovers = sync.OnceFunc(removeOrphans)

// removeOrphans removes what it can: another process may be doing the same.
func removeOrphans() {
	for _, dir := range []string{"/var/run/netns", "/etc/netns"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if orphaned(e.Name()) {
				_ = removeNamespace(e.Name())
			}
		}
	}
}
