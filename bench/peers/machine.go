package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/klauspost/cpuid/v2"
)

// machineText names the machine that a run used so many processors of.
func machineText(cores int) string {
	name := strings.TrimSpace(cpuid.CPU.BrandName)
	if name == "" {
		name = "CPU of unknown make"
	}
	kind := "machine"
	if cpuid.CPU.VM() {
		kind = "virtual machine"
	}
	text := fmt.Sprintf("%d-core %s %s", cores, name, kind)
	if c := cpuid.CPU.Cache; c.L2 > 0 && c.L3 > 0 {
		text += fmt.Sprintf(" (%s L2, %s L3)", formatSize(c.L2), formatSize(c.L3))
	}
	return fmt.Sprintf("%s, %s/%s%s, %s", text, runtime.GOOS, runtime.GOARCH, kernel(), runtime.Version())
}

// busy tells how much others use the machine during a run.
type busy struct {
	begun     time.Time
	all, mine time.Duration
}

func newBusy() busy { return busy{time.Now(), hostTime(), ownTime()} }

// foreign is how many cores others have kept busy since, -1 if that is not known.
func (b busy) foreign() float64 {
	all := hostTime()
	if all < 0 || b.all < 0 {
		return -1
	}
	theirs := (all - b.all) - (ownTime() - b.mine)
	return max(0, theirs.Seconds()/time.Since(b.begun).Seconds())
}
