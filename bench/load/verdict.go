package load

import (
	"fmt"
	"strings"
)

// Limits of the verdicts.
const (
	// mostIdle is what a process with idle communicators may use of a core.
	mostIdle = 0.01
	// fullyBusy is where a thread counts as one that never stops polling.
	fullyBusy = 0.85
	// lateTolerance is by how much the time burnt may differ from the time waited.
	lateTolerance = 0.15
	// mostAsleep is what a block that sleeps may use while it waits for the late
	// rank, in milliseconds.
	mostAsleep = 2.0
	// On a slow network threads are busier than busyInVain, and less of that than
	// mostUseful is work.
	busyInVain = 0.95
	mostUseful = 0.20
	// disturbed is the share of a core that others may use before it is told.
	disturbed = 0.05
)

// Verdict is a claim about what waiting costs and whether it holds here.
type Verdict struct {
	Pass     bool   `json:"pass"`
	Claim    string `json:"claim"`
	Measured string `json:"measured"`
	Limit    string `json:"limit"`
}

func (v Verdict) String() string {
	word := "FAIL"
	if v.Pass {
		word = "PASS"
	}
	return fmt.Sprintf("%s  %s: %s (limit: %s)", word, v.Claim, v.Measured, v.Limit)
}

// judge makes the verdicts that the figures allow: those about policies and drivers
// that were not measured are left out.
func judge(all []*Figures) []Verdict {
	var verdicts []Verdict
	for _, about := range []func([]*Figures) []Verdict{judgeIdle, judgeActive, judgeLate, judgeSlow} {
		verdicts = append(verdicts, about(all)...)
	}
	return verdicts
}

func judgeIdle(all []*Figures) []Verdict {
	var worst *Figures
	for _, f := range all {
		if f.Idle != nil && (worst == nil || f.Idle.MostProcess > worst.Idle.MostProcess) {
			worst = f
		}
	}
	if worst == nil {
		return nil
	}
	return []Verdict{{
		Pass:     worst.Idle.MostProcess < mostIdle,
		Claim:    "idle communicators cost nothing, whatever the policy",
		Measured: fmt.Sprintf("%d of them at most %.2f %% of a core (%s)", idleComms, 100*worst.Idle.MostProcess, worst.name()),
		Limit:    fmt.Sprintf("< %.0f %%", 100*mostIdle),
	}}
}

func judgeActive(all []*Figures) []Verdict {
	var verdicts []Verdict
	for _, f := range all {
		if f.Small == nil || f.Wait != "spin" || !f.proxied() {
			continue
		}
		v := Verdict{
			Claim: "a proxy thread that spins takes a core while operations are in flight",
			Limit: fmt.Sprintf(">= %.0f %%", 100*fullyBusy),
		}
		if l := f.Small; f.scarce(l) {
			v.Pass = l.Busy >= fullyBusy && l.LeastProxy >= fullyBusy/2*l.Had/float64(f.Threads)
			v.Measured = fmt.Sprintf("%.0f %% of a core each, where %s and took %.1f %% of it",
				100*l.Proxy, f.scarcity(l), 100*l.Busy)
			v.Limit += " of what was to be had, at least half a fair part for each proxy"
		} else {
			v.Pass = l.LeastProxy >= fullyBusy
			v.Measured = fmt.Sprintf("at least %.1f %%", 100*l.LeastProxy)
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// scarce reports whether the threads that poll could not have a core each.
func (f *Figures) scarce(l *Load) bool { return l.Had < float64(f.Threads) }

func (f *Figures) scarcity(l *Load) string {
	text := fmt.Sprintf("%d threads poll on %d cores", f.Threads, f.Cores)
	if l.Others >= disturbed {
		text += fmt.Sprintf(", %.1f of which others used,", l.Others)
	}
	return text
}

func judgeLate(all []*Figures) []Verdict {
	var verdicts []Verdict
	for _, f := range all {
		if f.Late == nil {
			continue
		}
		d := f.Late
		measured := fmt.Sprintf("%.2f ms of the %.1f ms waited, each time", d.Block, d.Waited)
		if f.proxied() {
			measured += fmt.Sprintf("; its proxy %.2f ms", d.Proxy)
		}
		switch f.Wait {
		case "spin":
			verdicts = append(verdicts, f.judgeBurnt(measured))
		case "block":
			verdicts = append(verdicts, Verdict{
				Pass:     d.Block < mostAsleep,
				Claim:    fmt.Sprintf("a block that sleeps (%s) burns almost none of it", f.Proxy),
				Measured: measured,
				Limit:    fmt.Sprintf("< %.0f ms", mostAsleep),
			})
		}
	}
	return verdicts
}

// judgeBurnt: where the threads that wait must share cores, they do so unevenly, since
// the two roles give the processor away at different times. Then they count together.
func (f *Figures) judgeBurnt(measured string) Verdict {
	d := f.Late
	v := Verdict{
		Claim:    fmt.Sprintf("a block that spins (%s) burns the time for which a rank is late", f.Proxy),
		Measured: measured,
		Limit:    fmt.Sprintf("%.0f to %.0f %% of it", 100*(1-lateTolerance), 100*(1+lateTolerance)),
	}
	v.Pass = d.Block >= (1-lateTolerance)*d.Waited && d.Block <= (1+lateTolerance)*d.Waited
	if d.Had < 1-disturbed {
		v.Pass = d.Busy >= 1-lateTolerance
		v.Measured += fmt.Sprintf("; all of it %.0f %% of what was to be had, %.2f of a core for each thread that polls", 100*d.Busy, d.Had)
		v.Limit = fmt.Sprintf(">= %.0f %% of that", 100*(1-lateTolerance))
	}
	return v
}

func judgeSlow(all []*Figures) []Verdict {
	var verdicts []Verdict
	for _, f := range all {
		if f.Slow == nil {
			continue
		}
		l := f.Slow
		who := "the blocks"
		if f.proxied() {
			who = "blocks and proxies"
		}
		busy := fmt.Sprintf("%.1f %%", 100*l.Busy)
		if f.scarce(l) {
			busy += " of what was to be had, where " + strings.TrimSuffix(f.scarcity(l), ",")
		}
		verdicts = append(verdicts, Verdict{
			Pass:     l.Busy > busyInVain,
			Claim:    fmt.Sprintf("on a slow network (%s) %s are busy", f.Proxy, who),
			Measured: busy,
			Limit:    fmt.Sprintf("> %.0f %%", 100*busyInVain),
		}, Verdict{
			Pass:     l.Useful < mostUseful,
			Claim:    fmt.Sprintf("on a slow network (%s) little of that is work", f.Proxy),
			Measured: fmt.Sprintf("%.1f %% useful", 100*l.Useful),
			Limit:    fmt.Sprintf("< %.0f %%", 100*mostUseful),
		})
	}
	return verdicts
}
