// Package sluicegate asks a Sluicegate gateway whether a thing may be done now. The gateway needs a listener with
// decides = "json". Copy this file into your program: it needs the standard library alone.
package sluicegate

import (
	"bufio"
	"container/list"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// Unknown stands for a number or a time that is not known, or that never comes.
const Unknown = -1

// Sources of a decision.
const (
	FromGateway = "gateway"    // The gateway was asked.
	FromMemory  = "remembered" // The gateway refused the same question less than a second ago.
	FromDefault = "default"    // No answer came: Options.OnFailure decides.
)

// OnFailure is the decision where no answer comes.
type OnFailure int

// Allow is the default: your program goes on without the gateway.
const (
	Allow OnFailure = iota
	Refuse
)

// Options may be left at zero, each of them.
type Options struct {
	Timeout   time.Duration // Of a whole question: connect, send and read. 0: 20 ms.
	OnFailure OnFailure
	Remember  int // Refusals that are remembered at most. 0: 1,024; below 0: none.
	Idle      int // Connections that are kept while no question uses them. 0: 16; below 0: none.
}

// Decision says whether to go on. Numbers and times may be Unknown.
type Decision struct {
	Allowed    bool
	Limit      string        // "" where the gateway names none.
	Remaining  int64         // How many more of cost 1 would pass.
	LimitValue int64         // The quota.
	RetryAfter time.Duration // 0 where allowed; else when to come back.
	Reset      time.Duration // When Remaining grows.
	Shadow     bool          // A limit in shadow mode would have refused.
	Source     string        // FromGateway, FromMemory or FromDefault.
}

// Error says that the question is wrong (400, 413), that this program may not ask (403), or that there is no such limit
// (404). Asking again does not help: correct the program or the gateway's file.
type Error struct {
	Status int
	Detail string
}

func (e *Error) Error() string { return fmt.Sprintf("sluicegate: %d: %s", e.Status, e.Detail) }

// ErrClosed is the error of a client after Close.
var ErrClosed = errors.New("sluicegate: the client is closed")

// Stats are counts since New.
type Stats struct {
	Asked       uint64 // Questions that went to the gateway.
	Failures    uint64 // Those of Asked that got no answer.
	Errors      uint64 // Those of Asked that got an *Error.
	Remembered  uint64 // Decisions from a remembered refusal.
	Skipped     uint64 // Decisions by default, without a question, after three failures in a row.
	LastFailure error  // Why the last of Failures got no answer.
}

// Client may be used from many goroutines. Make one for each gateway.
type Client struct {
	network, address string
	options          Options
	now              func() time.Time // Replaced by tests.

	mu        sync.Mutex // Held for moments, never while a question is under way.
	closed    bool
	stats     Stats
	idle      []*connection
	refusals  map[[sha256.Size]byte]*list.Element
	recent    *list.List // Of refusal, the one used last in front.
	inRow     int        // Failures since the last answer.
	restUntil time.Time
	trying    bool // A question is under way that tries whether the gateway is back.
}

type refusal struct {
	id        [sha256.Size]byte
	decision  Decision
	at, until time.Time
}

type connection struct {
	net.Conn
	reader *bufio.Reader
}

const (
	rememberAtMost = time.Second
	failuresInRow  = 3
	restTime       = time.Second
	questionAtMost = 1 << 20
	answerAtMost   = 64 << 10
)

var (
	// The connection ended before the first byte of an answer.
	errUnread = errors.New("the connection ended without an answer")
	// The gateway answers 503: it cannot decide, since the store of this limit is away.
	errUndecided = errors.New("status 503")
)

// New makes a client of the gateway at "127.0.0.1:9080" or "unix:/run/sluicegate/check.sock". It connects when it first asks.
func New(address string, options Options) *Client {
	if options.Timeout == 0 {
		options.Timeout = 20 * time.Millisecond
	}
	if options.Remember == 0 {
		options.Remember = 1024
	}
	if options.Idle == 0 {
		options.Idle = 16
	}
	c := &Client{network: "tcp", address: address, options: options, now: time.Now}
	if strings.HasPrefix(address, "unix:") {
		c.network, c.address = "unix", strings.TrimPrefix(address, "unix:")
	}
	c.refusals, c.recent = make(map[[sha256.Size]byte]*list.Element), list.New()
	return c
}

// AllowRequest asks whether key may pass limit now, at this cost (1 or more), and counts it where it may. Give one key for
// each part of the limit's key, and none for a limit with key = "global".
//
// An error is a mistake of configuration (*Error), or ErrClosed. The decision beside it is that of Options.OnFailure, so that
// a program may log the error and go on. A gateway that is away is no error: then Decision.Source is FromDefault.
func (c *Client) AllowRequest(limit string, cost int, key ...string) (Decision, error) {
	asked := map[string]any{"limit": limit, "cost": cost, "key": key}
	switch len(key) {
	case 0:
		delete(asked, "key")
	case 1:
		asked["key"] = key[0]
	}
	question, err := json.Marshal(asked)
	if err == nil && len(question) > questionAtMost {
		// The gateway may close before it has read so much. That would look like a failure of the gateway.
		err = &Error{http.StatusRequestEntityTooLarge, "The question has more than 1 MiB."}
	}
	if err != nil {
		return c.byDefault(limit), err
	}
	id := sha256.Sum256(question) // Keys may be long, and memory is bounded.
	decision, isTrial, err := c.begin(id, limit)
	if decision.Source != "" {
		return decision, err
	}
	decision, err = c.ask(question)
	return c.end(id, limit, isTrial, decision, err)
}

// Stats tells the counts so far.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Close closes the kept connections. A question that is under way still gets its answer; later ones get ErrClosed.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.idle {
		conn.Close()
	}
	c.idle = nil
}

func (c *Client) byDefault(limit string) Decision {
	decision := Decision{Allowed: true, Limit: limit, Remaining: Unknown, LimitValue: Unknown, Reset: Unknown, Source: FromDefault}
	if c.options.OnFailure == Refuse {
		decision.Allowed, decision.RetryAfter = false, Unknown
	}
	return decision
}

// begin decides where the gateway is not to be asked. A decision without a source: ask.
func (c *Client) begin(id [sha256.Size]byte, limit string) (decision Decision, isTrial bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.closed {
		return c.byDefault(limit), false, ErrClosed
	}
	if element := c.refusals[id]; element != nil {
		if known := element.Value.(refusal); now.Before(known.until) {
			c.recent.MoveToFront(element)
			c.stats.Remembered++
			decision, ago := known.decision, now.Sub(known.at)
			decision.Source = FromMemory
			decision.RetryAfter, decision.Reset = left(decision.RetryAfter, ago), left(decision.Reset, ago)
			return decision, false, nil
		}
		c.forget(element)
	}
	if c.inRow >= failuresInRow {
		if c.trying || now.Before(c.restUntil) {
			c.stats.Skipped++
			return c.byDefault(limit), false, nil
		}
		c.trying, isTrial = true, true
	}
	c.stats.Asked++
	return Decision{}, isTrial, nil
}

// end counts how the question went, and remembers a refusal.
func (c *Client) end(id [sha256.Size]byte, limit string, isTrial bool, decision Decision, err error) (Decision, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isTrial {
		c.trying = false
	}
	var wrong *Error
	if err != nil && !errors.As(err, &wrong) {
		c.stats.Failures++
		c.stats.LastFailure = err
		if errors.Is(err, errUndecided) {
			// One limit whose store is away says nothing about the others.
			c.inRow = 0
			return c.byDefault(limit), nil
		}
		c.inRow++
		// A question from before the rest may fail during it. That does not make the rest longer.
		if isTrial || c.inRow == failuresInRow {
			c.restUntil = c.now().Add(restTime)
		}
		return c.byDefault(limit), nil
	}
	c.inRow = 0
	if err != nil {
		c.stats.Errors++
		return c.byDefault(limit), err
	}
	if !decision.Allowed && c.options.Remember > 0 {
		keep, now := rememberAtMost, c.now()
		if decision.RetryAfter != Unknown && decision.RetryAfter < keep {
			keep = decision.RetryAfter
		}
		if element := c.refusals[id]; element != nil {
			c.forget(element)
		}
		c.refusals[id] = c.recent.PushFront(refusal{id, decision, now, now.Add(keep)})
		if c.recent.Len() > c.options.Remember {
			c.forget(c.recent.Back())
		}
	}
	return decision, nil
}

func (c *Client) forget(element *list.Element) {
	delete(c.refusals, c.recent.Remove(element).(refusal).id)
}

// left is the rest of a time that was told so long ago.
func left(told, ago time.Duration) time.Duration {
	switch {
	case told == Unknown:
		return Unknown
	case told < ago:
		return 0
	}
	return told - ago
}

// ask asks the gateway. An error that is no *Error is a failure.
func (c *Client) ask(question []byte) (Decision, error) {
	deadline := time.Now().Add(c.options.Timeout)
	if conn := c.takeIdle(); conn != nil {
		decision, err := c.askOver(conn, question, deadline)
		if !errors.Is(err, errUnread) {
			return decision, err
		}
		// The gateway has closed a connection that was kept. In the worst case it read the question before, and counts it
		// twice. A limit that is too strict by one for once is better than no answer.
	}
	conn, err := (&net.Dialer{Deadline: deadline}).Dial(c.network, c.address)
	if err != nil {
		return Decision{}, err
	}
	return c.askOver(&connection{conn, bufio.NewReader(conn)}, question, deadline)
}

func (c *Client) takeIdle() *connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := len(c.idle) - 1
	if last < 0 {
		return nil
	}
	conn := c.idle[last]
	c.idle = c.idle[:last]
	return conn
}

func (c *Client) giveBack(conn *connection, isUsable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isUsable && !c.closed && len(c.idle) < c.options.Idle {
		c.idle = append(c.idle, conn)
	} else {
		conn.Close()
	}
}

func (c *Client) askOver(conn *connection, question []byte, deadline time.Time) (Decision, error) {
	isUsable := false
	defer func() { c.giveBack(conn, isUsable) }()
	// One deadline for all that follows: a server that trickles bytes does not extend it.
	if err := conn.SetDeadline(deadline); err != nil {
		return Decision{}, err
	}
	host := "localhost"
	if c.network == "tcp" {
		host = c.address
	}
	message := fmt.Sprintf("POST /v1/check HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s",
		host, len(question), question)
	_, err := io.WriteString(conn, message)
	if err == nil {
		_, err = conn.reader.Peek(1)
	}
	if err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("%w: %v", errUnread, err)
		}
		return Decision{}, err
	}
	response, err := http.ReadResponse(conn.reader, nil)
	if err != nil {
		return Decision{}, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, answerAtMost))
	if err != nil {
		return Decision{}, err
	}
	// Where more of this answer is to come, it would be taken for the answer to the next question.
	isUsable = response.StatusCode >= 200 && len(body) < answerAtMost && !response.Close && conn.reader.Buffered() == 0
	return readAnswer(response.StatusCode, body)
}

func readAnswer(status int, body []byte) (Decision, error) {
	answer := struct {
		Allowed    *bool  `json:"allowed"`
		Limit      string `json:"limit"`
		Remaining  int64  `json:"remaining"`
		LimitValue int64  `json:"limit_value"`
		RetryAfter int64  `json:"retry_after_ms"`
		Reset      int64  `json:"reset_ms"`
		Shadow     bool   `json:"shadow"`
		Detail     string `json:"detail"`
	}{Remaining: Unknown, LimitValue: Unknown, RetryAfter: Unknown, Reset: Unknown} // A null changes nothing.
	err := json.Unmarshal(body, &answer)
	switch status {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusRequestEntityTooLarge:
		return Decision{}, &Error{status, answer.Detail}
	}
	switch {
	case status == http.StatusServiceUnavailable:
		return Decision{}, fmt.Errorf("%w: %s", errUndecided, answer.Detail)
	case status != http.StatusOK:
		return Decision{}, fmt.Errorf("status %d: %s", status, answer.Detail)
	case err != nil:
		return Decision{}, err
	case answer.Allowed == nil:
		return Decision{}, errors.New("the answer does not say whether it is allowed")
	}
	return Decision{*answer.Allowed, answer.Limit, answer.Remaining, answer.LimitValue,
		millis(answer.RetryAfter), millis(answer.Reset), answer.Shadow, FromGateway}, nil
}

func millis(ms int64) time.Duration {
	switch {
	case ms < 0:
		return Unknown
	case ms > math.MaxInt64/int64(time.Millisecond):
		return math.MaxInt64 // A time.Duration ends at 292 years.
	}
	return time.Duration(ms) * time.Millisecond
}
