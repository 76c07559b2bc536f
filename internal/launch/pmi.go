package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The PMI-1 wire protocol: one line each way, name=value pairs separated by
// spaces, the first pair is cmd. The process asks, the launcher answers:
//
//	cmd=init pmi_version=1 pmi_subversion=1   cmd=response_to_init rc=0 ...
//	cmd=get_maxes                             cmd=maxes kvsname_max= keylen_max= vallen_max=
//	cmd=get_my_kvsname                        cmd=my_kvsname kvsname=
//	cmd=put kvsname= key= value=              cmd=put_result rc=
//	cmd=barrier_in                            cmd=barrier_out, when every rank is in
//	cmd=get kvsname= key=                     cmd=get_result rc= value=
//	cmd=finalize                              cmd=finalize_ack
//
// A process that ends after init without finalize counts as crashed, and the
// launcher ends the job.
const (
	// longestLine is well above what any launcher's limits add up to.
	longestLine = 16 << 10
	// answerTimeout bounds an exchange that waits for the launcher alone.
	answerTimeout = 30 * time.Second
	// barrierTimeout bounds one that waits for all ranks, if the context doesn't.
	barrierTimeout = 10 * time.Minute
	// leaveTimeout bounds Close.
	leaveTimeout = 5 * time.Second

	initLine = "init pmi_version=1 pmi_subversion=1"
)

// pmi is a KVS over a connection to the launcher.
type pmi struct {
	conn       net.Conn
	in         *bufio.Reader
	where      string // the launcher, for errors
	rank, size int    // -1 and 0 until known

	// Hydra wants a finalize from a process that it knows, by init or by
	// initack, and ends the job of one that goes without; finalize needs init.
	introduced, begun bool
	closed            bool
	dead              error

	kvs                  string
	longestKey, longestV int
}

func newPMI(conn net.Conn, where string) *pmi {
	return &pmi{conn: conn, where: where, rank: -1, in: bufio.NewReaderSize(conn, longestLine)}
}

// openPMI takes over conn.
func openPMI(ctx context.Context, conn net.Conn, rank, size int) (KVS, error) {
	p := newPMI(conn, "PMI_FD")
	p.rank, p.size = rank, size
	return p.opened(ctx)
}

// opened is p as a KVS; nil, and not a nil *pmi in one, after an error.
func (p *pmi) opened(ctx context.Context) (KVS, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// dialPMI connects to PMI_PORT and shows id; the launcher answers with a few
// lines that tell rank and size.
func dialPMI(ctx context.Context, address string, id int) (*pmi, error) {
	dialer := net.Dialer{Timeout: answerTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: PMI_PORT: %w", ErrLauncher, err)
	}
	p := newPMI(conn, "PMI_PORT "+address)
	if err := p.introduce(ctx, id); err != nil {
		p.abandon()
		return nil, err
	}
	return p, nil
}

// introduce reads set lines up to the one for debug, which Hydra sends last.
func (p *pmi) introduce(ctx context.Context, id int) error {
	if _, err := p.ask(ctx, "initack", answerTimeout, "initack pmiid="+strconv.Itoa(id)); err != nil {
		return err
	}
	p.introduced = true
	const mostLines = 16
	for range mostLines {
		reply, err := p.ask(ctx, "set", answerTimeout, "")
		if err != nil {
			return err
		}
		if _, last := reply["debug"]; last {
			return nil
		}
		for name, to := range map[string]*int{"rank": &p.rank, "size": &p.size} {
			if text, ok := reply[name]; ok {
				n, err := strconv.ParseUint(text, 10, 24)
				if err != nil {
					return p.die(fmt.Errorf("%s %s is not a number of ranks", name, shown(text)))
				}
				*to = int(n)
			}
		}
	}
	return p.die(errors.New("too many lines of settings"))
}

// begin is init and what put and get need to know.
func (p *pmi) begin(ctx context.Context) (err error) {
	if p.begun && p.dead == nil {
		// A second user must not end the first one's session.
		return fmt.Errorf("%w: %s is already open", ErrLauncher, p.where)
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	p.begun = true
	reply, err := p.ask(ctx, "response_to_init", answerTimeout, initLine)
	if err != nil {
		return err
	}
	if reply.failed() {
		return p.die(fmt.Errorf("init: the launcher refuses version 1.1: %s", reply))
	}
	if reply, err = p.ask(ctx, "maxes", answerTimeout, "get_maxes"); err != nil {
		return err
	}
	for name, to := range map[string]*int{"keylen_max": &p.longestKey, "vallen_max": &p.longestV} {
		n, err := strconv.ParseUint(reply[name], 10, 31)
		if err != nil || n == 0 {
			return p.die(fmt.Errorf("get_maxes: %s is %s", name, shown(reply[name])))
		}
		// The launcher's limits count the end of a C string.
		*to = min(int(n)-1, longestLine/4)
	}
	if reply, err = p.ask(ctx, "my_kvsname", answerTimeout, "get_my_kvsname"); err != nil {
		return err
	}
	p.kvs = reply["kvsname"]
	if p.kvs == "" || len(p.kvs) > longestLine/4 {
		return p.die(fmt.Errorf("get_my_kvsname: the name is %s", shown(p.kvs)))
	}
	return nil
}

func (p *pmi) Put(ctx context.Context, key, value string) error {
	if err := p.checkKey(key); err != nil {
		return err
	}
	if value == "" || len(value) > p.longestV || strings.ContainsFunc(value, notPrintable) {
		return valuef("value of key %s: %d bytes; the launcher takes 1 to %d printable ones", key, len(value), p.longestV)
	}
	reply, err := p.ask(ctx, "put_result", answerTimeout, "put kvsname="+p.kvs+" key="+key+" value="+value)
	if err != nil {
		return err
	}
	if reply.failed() {
		return p.die(fmt.Errorf("put of key %s: %s", key, reply))
	}
	return nil
}

func (p *pmi) Get(ctx context.Context, key string) (string, error) {
	if err := p.checkKey(key); err != nil {
		return "", err
	}
	reply, err := p.ask(ctx, "get_result", answerTimeout, "get kvsname="+p.kvs+" key="+key)
	if err != nil {
		return "", err
	}
	value, ok := reply["value"]
	if reply.failed() {
		return "", fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	if !ok {
		return "", p.die(fmt.Errorf("get of key %s: no value in %s", key, reply))
	}
	return value, nil
}

func (p *pmi) Barrier(ctx context.Context) error {
	reply, err := p.ask(ctx, "barrier_out", barrierTimeout, "barrier_in")
	if err != nil {
		return err
	}
	if reply.failed() {
		return p.die(fmt.Errorf("barrier: %s", reply))
	}
	return nil
}

// leftOpen keeps the connections of dead sessions from the garbage collector,
// which would close them. Hydra kills a process whose connection ends without
// finalize, before it could print the error it got.
var leftOpen struct {
	sync.Mutex
	conns []net.Conn
}

// Close finalizes unless the store is dead: then question and answer are out of
// step. The connection of a dead store stays open until this process ends, and
// the launcher then takes that end for a crash and ends the other ranks.
func (p *pmi) Close() error {
	if p.closed {
		return nil
	}
	var err error
	if p.introduced && !p.begun && p.dead == nil {
		_, err = p.ask(context.Background(), "response_to_init", leaveTimeout, initLine)
		p.begun = err == nil
	}
	if p.begun && p.dead == nil {
		_, err = p.ask(context.Background(), "finalize_ack", leaveTimeout, "finalize")
	}
	p.abandon()
	return err
}

// abandon ends the session without finalize.
func (p *pmi) abandon() {
	if !p.closed && p.dead != nil && (p.begun || p.introduced) {
		leftOpen.Lock()
		leftOpen.conns = append(leftOpen.conns, p.conn)
		leftOpen.Unlock()
	} else if !p.closed {
		p.conn.Close()
	}
	p.closed = true
	if p.dead == nil {
		p.dead = fmt.Errorf("%w: %s is closed", ErrLauncher, p.where)
	}
}

func (p *pmi) checkKey(key string) error {
	if key == "" || len(key) > p.longestKey || strings.ContainsFunc(key, notPrintable) || strings.Contains(key, "=") {
		return valuef("key %s: the launcher takes 1 to %d printable characters other than =", shown(key), p.longestKey)
	}
	return nil
}

func notPrintable(r rune) bool { return r <= ' ' || r >= 0x7f }

// ask sends one line, if there is one, and reads one that must be of kind want.
func (p *pmi) ask(ctx context.Context, want string, timeout time.Duration, line string) (pmiReply, error) {
	if p.dead != nil {
		return nil, p.dead
	}
	command, _, _ := strings.Cut(line, " ")
	if command == "" {
		command = "initack"
	}
	begin := time.Now()
	deadline := begin.Add(timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := p.conn.SetDeadline(deadline); err != nil {
		return nil, p.die(fmt.Errorf("%s: %w", command, err))
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { p.conn.SetDeadline(time.Unix(1, 0)); close(cut) })
	reply, err := p.exchange(line)
	if !stop() {
		<-cut // so that it can't cut the next exchange short
	}
	if err == nil && reply["cmd"] != want {
		err = fmt.Errorf("the answer is %s", reply)
	}
	if err != nil {
		return nil, p.die(p.explain(ctx, command, want, time.Since(begin), err))
	}
	return reply, nil
}

// explain says what was waited for, for how long and from whom.
func (p *pmi) explain(ctx context.Context, command, want string, waited time.Duration, err error) error {
	awaited := want + " from the launcher"
	if want == "barrier_out" {
		awaited = fmt.Sprintf("all %d ranks to enter the launcher's barrier (this is rank %d)", p.size, p.rank)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		cause := error(context.DeadlineExceeded)
		if c := context.Cause(ctx); c != nil {
			cause = c
		}
		return fmt.Errorf("%s: waited %v for %s: %w", command, waited.Round(time.Millisecond), awaited, cause)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%s: the launcher closed the connection while this rank waited for %s: %w", command, awaited, io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%s: waiting for %s: %w", command, awaited, err)
}

func (p *pmi) exchange(line string) (pmiReply, error) {
	if line != "" {
		if n := p.in.Buffered(); n > 0 {
			return nil, fmt.Errorf("the launcher sent %d bytes more than it was asked for", n)
		}
		if _, err := p.conn.Write([]byte("cmd=" + line + "\n")); err != nil {
			return nil, err
		}
	}
	answer, err := p.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, fmt.Errorf("an answer longer than %d bytes", longestLine)
	}
	if err != nil {
		return nil, err
	}
	return parsePMI(string(answer))
}

func (p *pmi) die(err error) error {
	if p.dead == nil {
		p.dead = fmt.Errorf("%w (%s): %w", ErrLauncher, p.where, err)
	}
	return p.dead
}

// pmiReply is one parsed line.
type pmiReply map[string]string

func (r pmiReply) failed() bool {
	rc, ok := r["rc"]
	return ok && rc != "0"
}

func (r pmiReply) String() string {
	text := "cmd=" + r["cmd"]
	for _, name := range []string{"rc", "msg"} {
		if v, ok := r[name]; ok {
			text += " " + name + "=" + v
		}
	}
	return shown(text)
}

// parsePMI splits a line, with or without its end, into its pairs.
func parsePMI(line string) (pmiReply, error) {
	line = strings.TrimSuffix(line, "\n")
	if i := strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r >= 0x7f }); i >= 0 {
		return nil, fmt.Errorf("byte %d of the answer %s is not printable", i, shown(line))
	}
	reply := pmiReply{}
	for i, pair := range strings.FieldsFunc(line, func(r rune) bool { return r == ' ' }) {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" || (i == 0) != (name == "cmd") {
			return nil, fmt.Errorf("%s is not an answer of PMI-1", shown(line))
		}
		if _, twice := reply[name]; twice {
			return nil, fmt.Errorf("%s appears twice in the answer %s", shown(name), shown(line))
		}
		reply[name] = value
	}
	if reply["cmd"] == "" {
		return nil, fmt.Errorf("%s is not an answer of PMI-1", shown(line))
	}
	return reply, nil
}
