//go:build !unix

package herd

import (
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
)

// Without process groups and signals every request to end kills.
var (
	terminate os.Signal = os.Kill
	proceed   os.Signal
	kill      os.Signal = os.Kill
)

type signalRole int

const (
	rolePass signalRole = iota
	roleInterrupt
	roleStop
	roleContinue
)

func role(s os.Signal) signalRole {
	if s == os.Interrupt {
		return roleInterrupt
	}
	return rolePass
}

func listen() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 64)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	return ch, func() { signal.Stop(ch) }
}

func stopSelf() {}

func attributes() *syscall.SysProcAttr { return nil }

// signalGroup kills for SIGTERM as well. The console sends an interrupt to all of
// its processes, so that need not be passed on.
func signalGroup(p *os.Process, s os.Signal) {
	if s == os.Kill || s == syscall.SIGTERM {
		_ = p.Kill()
	}
}

func collect(p *os.Process, mu *sync.Mutex, running *bool) (*os.ProcessState, error) {
	state, err := p.Wait()
	mu.Lock()
	defer mu.Unlock()
	*running = false
	return state, err
}

func endLeftover(int) bool { return false }

func leftover(int) bool { return false }

func killLeftover(int) {}

func endingOf(state *os.ProcessState, err error) ending {
	if err != nil {
		return ending{statusFailed, "lost: " + err.Error()}
	}
	return ending{state.ExitCode(), "exit status " + strconv.Itoa(state.ExitCode())}
}

func pipeStatus(error) (int, bool) { return 0, false }

const haveGroups = false

func keeperAttributes() *syscall.SysProcAttr { return nil }

func ignoreSignals() {}
