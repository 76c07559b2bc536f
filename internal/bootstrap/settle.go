package bootstrap

import (
	"slices"
	"time"
)

// What is everywhere, found out with a token; all of this needs Control.mu.
//
// The coordinator, the lowest living rank, sends a token clockwise round the
// ring of the living whenever there is something in its log. Each process holds
// it until it has everything that the token asks about, then passes it on, so a
// token that has come back has found what it asked everywhere. The next token
// tells the others, who then forget those entries too, and asks about the next.
// With nothing left to tell or ask, no token is under way.
//
// A token is lost only with a process that holds it, or with a link. Each
// process keeps the latest token it has passed on and sends it again when its
// next neighbour changes or the link to it is a new one; who has seen it drops
// it. When the coordinator dies the lowest rank then living starts its own.
//
// The ring may skip only those that are lost or have left. A stopped process
// holds the token up, and with it the forgetting, but not the messages. Those
// that have left need nothing more, but wait to hear that their goodbye is
// everywhere: each of their neighbours gives them a copy. When nobody else lives
// there is nobody to ask.

// passing is a token to be passed on.
type passing struct {
	t     *token
	frame []byte
	from  int     // marks before this one are covered
	ready bool    // all marks are
	sent  []*link // where it went
}

func (p *passing) send(l *link) {
	if !slices.Contains(p.sent, l) {
		l.send(p.frame)
		p.sent = append(p.sent, l)
	}
}

// takeToken handles a token that has arrived.
func (c *Control) takeToken(t *token) {
	if t.issuer == c.rank {
		if c.inRound && t.round == c.round {
			delete(c.passing, c.rank)
			c.inRound = false
			c.found = t.asked
			c.forget(t.asked)
			c.coordinate()
		}
		return
	}
	if t.round <= c.seen[t.issuer] {
		return
	}
	c.seen[t.issuer] = t.round
	c.forget(t.settled)
	c.passing[t.issuer] = &passing{t: t, frame: tokenFrame(t)}
	c.pump()
}

func (c *Control) forget(marks []mark) {
	if len(marks) > 0 {
		c.progress++
		c.backlog -= c.journal.settle(marks, c.rank)
		c.notify()
	}
}

// pump passes tokens on as far as that is possible now.
func (c *Control) pump() {
	if len(c.passing) == 0 {
		return
	}
	next, _ := c.successor()
	for _, p := range c.passing {
		if !p.ready {
			p.ready = c.journal.covers(p.t.asked, &p.from)
		}
		if !p.ready {
			continue
		}
		// The copy that one who leaves has came to it off the ring: passed on, it
		// would skip those between, and the issuer count them as asked.
		if next != nil && !c.closing {
			p.send(next)
		}
		for _, l := range c.links {
			if c.state[l.peer] == hasLeft {
				p.send(l)
			}
		}
	}
}

// successor is the link to the next living process, or nil while there is none;
// alone says that no other lives.
func (c *Control) successor() (next *link, alone bool) {
	if c.living == 0 {
		return nil, true
	}
	for i := 1; i < c.size; i++ {
		if r := (c.rank + i) % c.size; c.state[r] == alive {
			return c.linked(r), false
		}
	}
	return nil, true
}

// mergeMarks has one mark for each origin, the further one.
func mergeMarks(a, b []mark) []mark {
	out := slices.Clone(a)
	for _, m := range b {
		i := slices.IndexFunc(out, func(x mark) bool { return x.origin == m.origin })
		if i < 0 {
			out = append(out, m)
		} else {
			out[i].seq = max(out[i].seq, m.seq)
		}
	}
	return out
}

// coordinator reports whether it falls to this process to send tokens.
func (c *Control) coordinator() bool {
	return c.state[c.rank] == alive && slices.Index(c.state, alive) == c.rank
}

// roundPause is how long a coordinator waits before it starts a round, to ask
// about more with it. When a large job leaves, every rank is the lowest living
// one for a moment, and would send a token of its own.
func roundPause(size int) time.Duration {
	if size <= 8 {
		return 0
	}
	return min(time.Duration(size)*50*time.Microsecond, 20*time.Millisecond)
}

// coordinate starts a round, soon, if it is this process's to start.
func (c *Control) coordinate() {
	if !c.joined || c.down || c.waiting || !c.coordinator() {
		return
	}
	if _, alone := c.successor(); c.inRound && !alone || len(c.journal.log) == 0 && len(c.found) == 0 {
		return
	}
	pause := roundPause(c.size)
	if pause == 0 {
		c.startRound()
		return
	}
	c.waiting = true
	time.AfterFunc(pause, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.waiting = false
		if c.coordinator() && !c.down {
			c.startRound()
		}
	})
}

// startRound sends a token if there is something to find out or to tell.
func (c *Control) startRound() {
	_, alone := c.successor()
	if c.inRound && !alone {
		return
	}
	asked := c.journal.unsettled()
	if alone {
		c.forget(asked)
		c.found = mergeMarks(c.found, asked)
		asked = nil
	}
	if len(asked) == 0 && len(c.found) == 0 {
		return
	}
	c.round++
	c.inRound = !alone // when alone the token is only told to those who leave
	t := &token{issuer: c.rank, round: c.round, settled: c.found, asked: asked}
	c.found = nil
	c.passing[c.rank] = &passing{t: t, frame: tokenFrame(t), ready: true}
	c.pump()
}
