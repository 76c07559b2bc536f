package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gollective/gollective/internal/address"
	"github.com/gollective/gollective/internal/handshake"
)

// Which links a process wants, how it gets them, and when it may call another
// lost.
//
// It wants the next living rank, and one about √size further: with the two that
// others want of it, four links. When the next rank does not answer it is dialled
// in the background and the one after it is taken as well, and so on, so that
// any number of deaths in a row is bridged in the time of one.
//
// A death is decided by what answers at the process's addresses:
//
//   - nobody listens, after a link to it broke: it is dead;
//   - nobody listens, and there never was a link: dead as well, if that stays so
//     for patience; the goodbye of a process that leaves is everywhere before it
//     stops listening, but what is known here may be behind;
//   - the host accepts, nobody answers: a stopped process, or a busy one. If the
//     link to it broke because its end was closed it can't be that, and it is
//     given silence before it counts as dead; else it is waited for, forever;
//   - the host is silent: dead after a while.

const (
	patience    = 400 * time.Millisecond
	resets      = 1200 * time.Millisecond // of connections accepted and closed, which an overrun process may do
	silence     = 3 * time.Second
	unreachable = 10 * time.Second // at most; a third of PeerTimeout
	// slowAnswer is when to take another neighbour as well.
	slowAnswer = 500 * time.Millisecond
	redial     = 20 * time.Millisecond
	maxRedial  = 100 * time.Millisecond
	dialTime   = 5 * time.Second
)

// dialling is the attempt to reach one process.
type dialling struct {
	since time.Time
	past  linkPast
	cause error // why the link broke, if there was one
	slow  bool  // no answer so far: others are to be tried as well
	hangs bool  // slow, and not refused: the peer may be stopped, or everything slow

	// The current run of failures that followed one another at once. An attempt
	// that took long ends a run: the peer, or this process, was stopped meanwhile.
	failing time.Time // the first of them
	failed  time.Time // the last
}

// fail counts a failure at the given time and returns how long the run has lasted.
func (d *dialling) fail(now time.Time) time.Duration {
	if now.Sub(d.failed) > slowAnswer {
		d.failing = now
	}
	d.failed = now
	return now.Sub(d.failing)
}

type linkPast uint8

const (
	neverLinked linkPast = iota
	linkClosed           // its end was closed: by its process, or with it
	linkTimedOut
)

// pastOf says what the end of a link's reader shows.
func pastOf(err error) linkPast {
	var timeout net.Error
	switch {
	case err == nil:
		return neverLinked
	case errors.As(err, &timeout) && timeout.Timeout(), handshake.IsUnreachable(err):
		return linkTimedOut
	}
	return linkClosed
}

// dead decides whether a process is lost, from its past link, the latest failure
// to reach it, how long it has failed without a break, the time since the first
// attempt, and how long a host may be unreachable.
func dead(past linkPast, t trouble, failing, tried, unreachable time.Duration) bool {
	switch t {
	case troubleRefused:
		return past != neverLinked || failing >= patience
	case troubleReset:
		return failing >= resets || past != neverLinked && failing >= patience
	case troubleUnreachable:
		return tried >= unreachable || past != neverLinked && tried >= min(silence, unreachable)
	}
	return past == linkClosed && tried >= silence
}

// unreachable is how long a host may be so.
func (c *Control) unreachable() time.Duration {
	return min(max(c.cfg.PeerTimeout/3, time.Second), unreachable)
}

// reach starts dialling a process, if that isn't under way; broken is the end of
// the link to it, if there was one.
func (c *Control) reach(peer int, broken error) {
	if c.down {
		return
	}
	if d := c.dials[peer]; d != nil {
		if broken != nil {
			d.past, d.cause = pastOf(broken), broken
		}
		return
	}
	d := &dialling{since: time.Now(), past: pastOf(broken), cause: broken}
	c.dials[peer] = d
	c.wg.Add(1)
	go c.dialUntilDecided(peer, d)
}

// dialUntilDecided must be called without c.mu.
func (c *Control) dialUntilDecided(peer int, d *dialling) {
	defer c.wg.Done()
	for pause := redial; ; pause = min(2*pause, maxRedial) {
		conn, err := c.dialMember(peer, d)
		c.mu.Lock()
		decided := c.decide(peer, d, conn, err)
		c.mu.Unlock()
		if decided || sleep(c.ctx, pause) != nil {
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// decide takes the outcome of one attempt; true ends the attempts.
func (c *Control) decide(peer int, d *dialling, conn net.Conn, err error) bool {
	if conn != nil {
		delete(c.dials, peer)
		c.addLink(peer, newLink(peer, conn))
		return true
	}
	if c.down || c.state[peer] != alive || c.linked(peer) != nil {
		delete(c.dials, peer)
		return true
	}
	if errors.Is(err, errDeclaredLost) {
		delete(c.dials, peer)
		c.bury(&LostError{Rank: c.rank, By: peer, Cause: fmt.Sprintf("rank %d says so", peer)})
		c.notify()
		return true
	}
	if errors.Is(err, errElsewhere) && !c.joined && c.failure == nil {
		c.failure = &Error{Phase: PhaseRing, Rank: peer, Reporter: c.rank, Addr: c.peers[peer].addr(), Err: ErrGaveUp, Detail: err.Error()}
		c.notify()
	}
	now := time.Now()
	if dead(d.past, classify(err), d.fail(now), now.Sub(d.since), c.unreachable()) {
		delete(c.dials, peer)
		if c.closing && d.past == neverLinked {
			// The others need not wait for this process any more, so it may not
			// have heard of a goodbye. It makes do without the peer, and accuses
			// nobody: those who stay will find out.
			c.end(peer, hasLeft)
			c.maintain()
			c.coordinate()
			c.notify()
			return true
		}
		cause := fmt.Sprintf("%s: %v", c.peers[peer].addr(), err)
		if d.cause != nil {
			cause = fmt.Sprintf("its connection ended (%v), then %s", d.cause, cause)
		}
		c.lose(peer, cause)
		return true
	}
	d.slow, d.hangs = true, false
	c.maintain()
	return false
}

var (
	errDeclaredLost = errors.New("declared lost")
	errElsewhere    = errors.New("its addresses mean nothing on this host")
)

// dialMember makes one attempt; it must be called without c.mu.
func (c *Control) dialMember(peer int, d *dialling) (net.Conn, error) {
	c.mu.Lock()
	m, past, seen := c.peers[peer], d.past, c.seenAt[peer]
	c.mu.Unlock()
	addrs, err := c.reachable(peer, &m)
	if err != nil {
		return nil, err
	}
	addrs = proven(addrs, seen)
	slow := time.AfterFunc(slowAnswer, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		d.slow, d.hangs = true, true
		c.maintain()
	})
	defer slow.Stop()
	wait := time.Duration(0)
	if past == linkClosed {
		wait = silence
	}
	h := hello{role: roleLink, from: uint32(c.rank), to: uint32(peer), size: uint32(c.size)}
	return handshake.Race(c.ctx, addrs, func(ctx context.Context, addr string) (net.Conn, error) {
		conn, v, err := connect(ctx, addr, c.cfg.Family, c.cfg.ID.terms(c.cfg.TLS), h, min(dialTime, c.unreachable()), wait)
		if v == declaredLost {
			return nil, fmt.Errorf("%w: %w", errDeclaredLost, err)
		}
		return conn, err
	})
}

// proven leaves only the addresses that a link has shown to lead to the process,
// if there are any: what is not at the others proves nothing.
func proven(addrs []string, seen net.Addr) []string {
	var out []string
	for _, a := range addrs {
		ap, err := netip.ParseAddrPort(a)
		switch s := seen.(type) {
		case *net.UnixAddr:
			if a[0] == '@' {
				out = append(out, a)
			}
		case *net.TCPAddr:
			if err == nil && ap.Addr().Unmap() == address.Of(s) {
				out = append(out, a)
			}
		}
	}
	if len(out) == 0 {
		return addrs
	}
	return out
}

// connect dials, within reach, and greets. wait bounds the time for an answer, 0 is
// without bound; ctx ends both.
func connect(ctx context.Context, addr, family string, t handshake.Terms, h hello, reach, wait time.Duration) (net.Conn, verdict, error) {
	dialCtx, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	dialled, err := dial(dialCtx, addr, family)
	if err != nil {
		return nil, 0, err
	}
	if wait > 0 {
		dialled.SetDeadline(time.Now().Add(wait))
	}
	stop := context.AfterFunc(ctx, func() { dialled.Close() })
	conn, v, err := greet(dialled, t, h)
	if !stop() && err == nil {
		err = ctx.Err() // closed, or about to be
	}
	if err != nil {
		dialled.Close()
		var timeout net.Error
		if ctx.Err() != nil {
			err = ctx.Err()
		} else if errors.As(err, &timeout) && timeout.Timeout() {
			err = fmt.Errorf("%w for %v", errSilent, wait)
		}
		return nil, v, err
	}
	conn.SetDeadline(time.Time{})
	return conn, v, nil
}

// reachable leaves out addresses that mean something else on this host.
func (c *Control) reachable(peer int, m *member) ([]string, error) {
	var out []string
	for _, a := range m.addrs {
		local := a[0] == '@'
		if ap, err := netip.ParseAddrPort(a); err == nil && ap.Addr().IsLoopback() {
			local = true
		}
		if !local || m.host == c.self.host {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: rank %d is on %s and listens at %s only, this process is on %s; name an interface that both have",
			errElsewhere, peer, m.name, strings.Join(m.addrs, " and "), c.self.name)
	}
	return out, nil
}

// maintain starts what is needed to have the links wanted; it needs c.mu.
func (c *Control) maintain() {
	if !c.joined || c.down || c.state[c.rank] == isLost {
		return
	}
	if c.closing {
		if c.isolated {
			c.want(1)
		}
		return
	}
	c.want(1)
	if skip := chord(c.size); skip > 1 {
		c.want(skip)
	}
}

// maintainSoon is maintain for a goodbye: who says it stays linked for a while,
// and those who leave together should not be replaced one after the other.
func (c *Control) maintainSoon() {
	pause := 2 * roundPause(c.size)
	if pause == 0 {
		c.maintain()
		return
	}
	if c.mending {
		return
	}
	c.mending = true
	time.AfterFunc(pause, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.mending = false
		c.maintain()
		c.pump()
	})
}

// seekLiving gets a process that is leaving a link to one that isn't, if it has
// none and there is one: to be heard and to hear.
func (c *Control) seekLiving() {
	c.isolated = !slices.ContainsFunc(c.links, func(l *link) bool { return c.state[l.peer] == alive })
	c.maintain()
}

// chord is how many ranks away the far neighbour is, or 0 where there is none
// that isn't a near one.
func chord(size int) int {
	if size < 4 {
		return 0
	}
	return int(math.Round(math.Sqrt(float64(size))))
}

// maxHanging is how many dials may hang at once before no more are started: on
// a host where everything is slow, more of them make it slower.
const maxHanging = 4

// want goes round in strides, dials the first living process that it meets, and
// the ones after it as long as those before don't answer.
func (c *Control) want(stride int) {
	hanging := 0
	for i := stride; i < c.size; i += stride {
		r := (c.rank + i) % c.size
		if c.state[r] != alive {
			continue
		}
		if c.linked(r) != nil {
			return
		}
		d := c.dials[r]
		if d == nil {
			c.reach(r, nil)
			return
		}
		if d.hangs {
			hanging++
		}
		if !d.slow || hanging == maxHanging || c.closing && hanging > 0 {
			return
		}
	}
}
