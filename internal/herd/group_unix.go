//go:build unix

package herd

import (
	"errors"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

var (
	terminate os.Signal = syscall.SIGTERM
	proceed   os.Signal = syscall.SIGCONT
	kill      os.Signal = syscall.SIGKILL
)

type signalRole int

const (
	rolePass signalRole = iota
	roleInterrupt
	roleStop
	roleContinue
)

var roles = map[os.Signal]signalRole{
	syscall.SIGINT:  roleInterrupt,
	syscall.SIGTERM: rolePass,
	syscall.SIGHUP:  rolePass,
	syscall.SIGQUIT: rolePass,
	syscall.SIGUSR1: rolePass,
	syscall.SIGUSR2: rolePass,
	syscall.SIGTSTP: roleStop,
	syscall.SIGCONT: roleContinue,
}

func role(s os.Signal) signalRole { return roles[s] }

// listen catches the signals of roles, but for those that were ignored.
func listen() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 64)
	for s := range roles {
		if !signal.Ignored(s) {
			signal.Notify(ch, s)
		}
	}
	// Without a handler a broken pipe at standard output would end the launcher
	// before the ranks; with one, writes return the error. Ignoring SIGPIPE would
	// be inherited by the ranks.
	pipe := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGPIPE) {
		signal.Notify(pipe, syscall.SIGPIPE)
	}
	return ch, func() {
		signal.Stop(ch)
		signal.Stop(pipe)
	}
}

// stopSelf stops the launcher as SIGTSTP would have, if it weren't caught.
func stopSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

// signalGroup sends to the group that p leads; p has not been collected.
func signalGroup(p *os.Process, s os.Signal) {
	if s, ok := s.(syscall.Signal); ok {
		_ = syscall.Kill(-p.Pid, s)
	}
}

// endLeftover sends SIGTERM to what is left of a group whose leader has just been
// collected; false when nothing is.
func endLeftover(pgid int) bool {
	err := syscall.Kill(-pgid, syscall.SIGTERM)
	_ = syscall.Kill(-pgid, syscall.SIGCONT)
	return !errors.Is(err, syscall.ESRCH)
}

func killLeftover(pgid int) { _ = syscall.Kill(-pgid, syscall.SIGKILL) }

func endingOf(state *os.ProcessState, err error) ending {
	if err != nil {
		return ending{statusFailed, "lost: " + err.Error()}
	}
	w, ok := state.Sys().(syscall.WaitStatus)
	if !ok || !w.Signaled() {
		return ending{state.ExitCode(), "exit status " + strconv.Itoa(state.ExitCode())}
	}
	how := "killed by " + signalName(w.Signal())
	if w.CoreDump() {
		how += " (core dumped)"
	}
	return ending{statusSignalBase + int(w.Signal()), how}
}

func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return "signal " + strconv.Itoa(int(s))
}

// pipeStatus is the status of a program that dies of a write to err's pipe.
func pipeStatus(err error) (int, bool) {
	return statusSignalBase + int(syscall.SIGPIPE), errors.Is(err, syscall.EPIPE)
}

const haveGroups = true

// keeperAttributes: outside the launcher's group, where no Ctrl-C reaches it.
func keeperAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// ignoreSignals: those that end the launcher must leave the keeper, who has work
// to do then.
func ignoreSignals() {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTSTP)
}
