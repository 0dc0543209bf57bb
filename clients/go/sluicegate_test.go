package sluicegate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	patient = 10 * time.Second // A timeout for tests that expect an answer, also of a busy machine.
	hasty   = 50 * time.Millisecond
	enough  = 5 * time.Second // Far more than hasty, for a busy machine; far less than never.
)

// ---- The gateway itself ----

const configuration = `
[[listener]]
address = "127.0.0.1:%d"
decides = "json"

[[limit]]
name = "per-key"
key = "header:x-api-key"
rate = "3/1h"

[[limit]]
name = "per-pair"
key = ["client-ip", "header:x-api-key"]
rate = "3/1h"

[[route]]
name = "api"
limits = ["per-key", "per-pair"]
`

type gateway struct {
	t       *testing.T
	file    string
	address string
	process *exec.Cmd
	gone    chan struct{}
	words   *bytes.Buffer // Read only after gone.
}

func startGateway(t *testing.T) *gateway {
	t.Helper()
	if os.Getenv("SLUICEGATE") == "" {
		t.Fatal("this test needs the gateway: set SLUICEGATE to the path of the sluicegate binary")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	g := &gateway{t: t, file: filepath.Join(t.TempDir(), "gateway.toml"), address: fmt.Sprintf("127.0.0.1:%d", port)}
	check(t, os.WriteFile(g.file, []byte(fmt.Sprintf(configuration, port)), 0o600))
	g.start()
	t.Cleanup(g.kill)
	return g
}

func (g *gateway) start() {
	g.t.Helper()
	g.gone, g.words = make(chan struct{}), new(bytes.Buffer)
	g.process = exec.Command(os.Getenv("SLUICEGATE"), "run", "--config", g.file)
	g.process.Dir = filepath.Dir(g.file)
	g.process.Stdout, g.process.Stderr = g.words, g.words
	check(g.t, g.process.Start())
	go func(process *exec.Cmd, gone chan struct{}) {
		process.Wait()
		close(gone)
	}(g.process, g.gone)
	asker := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if response, err := asker.Get("http://" + g.address + "/healthz"); err == nil {
			response.Body.Close()
			if response.StatusCode == 200 {
				return
			}
		}
		select {
		case <-g.gone:
			g.t.Fatalf("the gateway ended: %s", g.words)
		case <-time.After(20 * time.Millisecond):
		}
	}
	g.kill()
	g.t.Fatalf("the gateway does not answer GET /healthz: %s", g.words)
}

// stop stops the process, and waits until each of its threads stands still.
func (g *gateway) stop() {
	g.t.Helper()
	check(g.t, g.process.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(g.process.Process.Pid, &status, syscall.WUNTRACED, nil)
	check(g.t, err)
	if !status.Stopped() {
		g.t.Fatal("the gateway ended instead of stopping")
	}
}

// kill ends the process of this test, also where it is stopped.
func (g *gateway) kill() {
	g.process.Process.Kill()
	<-g.gone
}

func TestGatewayAnswers(t *testing.T) {
	c := newClient(t, startGateway(t).address, Options{Timeout: patient})
	for i, remaining := range []int64{2, 1, 0} {
		d := decide(t, c, "per-key", 1, "a")
		if !d.Allowed || d.Limit != "per-key" || d.Remaining != remaining || d.LimitValue != 3 || d.RetryAfter != 0 || d.Source != FromGateway {
			t.Fatalf("question %d: %+v", i, d)
		}
	}
	d := decide(t, c, "per-key", 1, "a")
	if d.Allowed || d.Limit != "per-key" || d.Remaining != 0 || d.RetryAfter <= 0 || d.RetryAfter > time.Hour || d.Source != FromGateway {
		t.Fatalf("the fourth: %+v", d)
	}
	if d := decide(t, c, "per-key", 1, "b"); !d.Allowed {
		t.Fatalf("another key: %+v", d)
	}
	if d := decide(t, c, "per-key", 3, "c"); !d.Allowed || d.Remaining != 0 {
		t.Fatalf("cost 3: %+v", d)
	}
	for i := 0; i < 3; i++ {
		if d := decide(t, c, "per-pair", 1, "192.0.2.7", "a"); !d.Allowed {
			t.Fatalf("two parts, question %d: %+v", i, d)
		}
	}
	if d := decide(t, c, "per-pair", 1, "192.0.2.7", "a"); d.Allowed || d.RetryAfter <= 0 {
		t.Fatalf("two parts, the fourth: %+v", d)
	}
	if d := decide(t, c, "per-pair", 1, "192.0.2.8", "a"); !d.Allowed {
		t.Fatalf("another first part: %+v", d)
	}
	if stats := c.Stats(); stats.Failures != 0 || stats.Asked != 11 {
		t.Fatalf("%+v", stats)
	}
}

func TestGatewayNamesMistakes(t *testing.T) {
	c := newClient(t, startGateway(t).address, Options{Timeout: patient})
	for _, wrong := range []struct {
		limit  string
		cost   int
		key    []string
		status int
	}{
		{"no-such-limit", 1, []string{"a"}, 404},
		{"per-key", 0, []string{"a"}, 400},
		{"per-key", 1, []string{"a", "b"}, 400},
		{"per-pair", 1, nil, 400},
	} {
		d, err := c.AllowRequest(wrong.limit, wrong.cost, wrong.key...)
		var mistake *Error
		if !errors.As(err, &mistake) || mistake.Status != wrong.status || mistake.Detail == "" {
			t.Fatalf("%+v: %v", wrong, err)
		}
		if !d.Allowed || d.Source != FromDefault {
			t.Fatalf("%+v: %+v", wrong, d)
		}
	}
	if stats := c.Stats(); stats.Failures != 0 || stats.Errors != 4 {
		t.Fatalf("%+v", stats)
	}
}

func TestGatewayStopped(t *testing.T) {
	g := startGateway(t)
	g.stop()
	for _, onFailure := range []OnFailure{Allow, Refuse} {
		c := newClient(t, g.address, Options{Timeout: hasty, OnFailure: onFailure})
		begun := time.Now()
		d := decide(t, c, "per-key", 1, "a")
		if took := time.Since(begun); took < hasty || took > enough {
			t.Fatalf("the decision took %v", took)
		}
		if d.Allowed != (onFailure == Allow) || d.Source != FromDefault {
			t.Fatalf("%+v", d)
		}
		if stats := c.Stats(); stats.Failures != 1 || stats.LastFailure == nil {
			t.Fatalf("%+v", stats)
		}
	}
}

func TestGatewayKilledAndBack(t *testing.T) {
	g := startGateway(t)
	c, clock := newClockedClient(t, g.address, Options{Timeout: patient})
	if d := decide(t, c, "per-key", 1, "a"); d.Source != FromGateway {
		t.Fatalf("before: %+v", d)
	}
	g.kill()
	for i := 0; i < 5; i++ {
		if d := decide(t, c, "per-key", 1, "a"); !d.Allowed || d.Source != FromDefault {
			t.Fatalf("killed, question %d: %+v", i, d)
		}
	}
	if stats := c.Stats(); stats.Failures != 3 || stats.Skipped != 2 {
		t.Fatalf("killed: %+v", stats)
	}
	g.start()
	clock.pass(999 * time.Millisecond)
	if d := decide(t, c, "per-key", 1, "a"); d.Source != FromDefault {
		t.Fatalf("too early: %+v", d)
	}
	clock.pass(time.Millisecond)
	for i := 0; i < 3; i++ {
		if d := decide(t, c, "per-key", 1, "a"); !d.Allowed || d.Source != FromGateway {
			t.Fatalf("back, question %d: %+v", i, d)
		}
	}
	if d := decide(t, c, "per-key", 1, "a"); d.Allowed {
		t.Fatalf("back, the fourth: %+v", d)
	}
}

func TestGatewayAskedByManyAtOnce(t *testing.T) {
	g := startGateway(t)
	for _, options := range []Options{{Timeout: patient}, {Timeout: patient, Remember: -1, Idle: -1}} {
		c := newClient(t, g.address, options)
		key := fmt.Sprint(options.Remember)
		var allowed atomic.Int64
		var all sync.WaitGroup
		for i := 0; i < 60; i++ {
			all.Add(1)
			go func() {
				defer all.Done()
				for j := 0; j < 5; j++ {
					if d, err := c.AllowRequest("per-key", 1, key); err == nil && d.Allowed {
						allowed.Add(1)
					}
				}
			}()
		}
		all.Wait()
		stats := c.Stats()
		if allowed.Load() != 3 || stats.Failures != 0 || stats.Asked+stats.Remembered != 300 {
			t.Fatalf("%d were allowed: %+v", allowed.Load(), stats)
		}
		if options.Remember < 0 && stats.Remembered != 0 {
			t.Fatalf("remembered although Remember is below 0: %+v", stats)
		}
	}
}

// ---- Servers that the gateway is not: slow, broken, counting ----

const (
	admitted = `{"allowed": true, "limit": "l", "remaining": 4, "limit_value": 5, "retry_after_ms": 0, "reset_ms": 1200, "shadow": false}`
	refused  = `{"allowed": false, "limit": "l", "remaining": 0, "limit_value": 5, "retry_after_ms": %s, "reset_ms": 1200, "shadow": false}`
)

type stub struct {
	address                string
	connections, questions atomic.Int64
}

// startStub serves each connection, in a goroutine of its own. The connection is closed when serve returns.
func startStub(t *testing.T, network, address string, serve func(s *stub, conn net.Conn, number int64)) *stub {
	t.Helper()
	listener, err := net.Listen(network, address)
	check(t, err)
	s := &stub{address: listener.Addr().String()}
	if network == "unix" {
		s.address = "unix:" + s.address
	}
	var mu sync.Mutex
	var open []net.Conn
	var all sync.WaitGroup
	all.Add(1)
	go func() {
		defer all.Done()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			number := s.connections.Add(1)
			all.Add(1)
			go func() {
				defer all.Done()
				defer conn.Close()
				serve(s, conn, number)
			}()
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for _, conn := range open {
			conn.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return s
}

// answering serves a connection as the gateway does. The answer is a body, or where it has one a status before it ("503 {}").
func answering(answer func(question string) string) func(*stub, net.Conn, int64) {
	return func(s *stub, conn net.Conn, _ int64) {
		reader := bufio.NewReader(conn)
		for {
			question, err := readQuestion(s, reader)
			if err != nil {
				return
			}
			io.WriteString(conn, whole(answer(question)))
		}
	}
}

func readQuestion(s *stub, reader *bufio.Reader) (string, error) {
	request, err := http.ReadRequest(reader)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return "", err
	}
	if request.Method != "POST" || request.URL.Path != "/v1/check" || request.Header.Get("content-type") != "application/json" || request.Host == "" {
		return "", fmt.Errorf("not a question: %+v", request)
	}
	s.questions.Add(1)
	return string(body), nil
}

func whole(answer string) string {
	status := "200"
	if !strings.HasPrefix(answer, "{") && len(answer) > 3 {
		status, answer = answer[:3], strings.TrimSpace(answer[3:])
	}
	return fmt.Sprintf("HTTP/1.1 %s Status\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", status, len(answer), answer)
}

func TestQuestion(t *testing.T) {
	var last string
	s := startStub(t, "tcp", "127.0.0.1:0", answering(func(question string) string { last = question; return admitted }))
	c := newClient(t, s.address, Options{Timeout: patient})
	for _, asked := range []struct {
		key  []string
		want string
	}{
		{nil, `{"limit": "l", "cost": 2}`},
		{[]string{""}, `{"limit": "l", "cost": 2, "key": ""}`},
		{[]string{"é\"\n<"}, `{"limit": "l", "cost": 2, "key": "é\"\n<"}`},
		{[]string{"a", "b"}, `{"limit": "l", "cost": 2, "key": ["a", "b"]}`},
	} {
		d := decide(t, c, "l", 2, asked.key...)
		if want := (Decision{true, "l", 4, 5, 0, 1200 * time.Millisecond, false, FromGateway}); d != want {
			t.Fatalf("%+v", d)
		}
		var got, want any
		check(t, json.Unmarshal([]byte(last), &got))
		check(t, json.Unmarshal([]byte(asked.want), &want))
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%s, not %s", last, asked.want)
		}
	}
	if s.connections.Load() != 1 {
		t.Fatalf("%d connections for questions one after another", s.connections.Load())
	}
}

func TestUnixSocket(t *testing.T) {
	s := startStub(t, "unix", filepath.Join(t.TempDir(), "s"), answering(func(string) string { return admitted }))
	c := newClient(t, s.address, Options{Timeout: patient})
	if d := decide(t, c, "l", 1, "a"); d.Source != FromGateway {
		t.Fatalf("%+v", d)
	}
}

func TestAnswers(t *testing.T) {
	for _, answered := range []struct {
		answer   string
		status   int // Of an *Error.
		decision Decision
	}{
		{`{"allowed": true, "limit": null, "remaining": null, "limit_value": null, "retry_after_ms": 0, "reset_ms": null, "shadow": true}`,
			0, Decision{true, "", Unknown, Unknown, 0, Unknown, true, FromGateway}},
		{`{"allowed": false, "limit": "l", "remaining": 0, "limit_value": 0, "retry_after_ms": null, "reset_ms": null, "shadow": false}`,
			0, Decision{false, "l", 0, 0, Unknown, Unknown, false, FromGateway}},
		{`{"allowed": false, "limit": "l", "remaining": 1, "limit_value": 5, "retry_after_ms": 9223372036854775807, "reset_ms": 7, "more": {}}`,
			0, Decision{false, "l", 1, 5, 1<<63 - 1, 7 * time.Millisecond, false, FromGateway}},
		{`400 {"title": "Bad Request", "status": 400, "detail": "d"}`, 400, byDefault},
		{`403 {"title": "Forbidden", "status": 403, "detail": "d"}`, 403, byDefault},
		{`404 not json`, 404, byDefault},
		{`413 {"detail": "d"}`, 413, byDefault},
		{`503 {"title": "Service Unavailable", "status": 503, "detail": "d"}`, 0, byDefault},
		{`500 ` + admitted, 0, byDefault},
		{`302 ` + admitted, 0, byDefault},
		{`200 not json`, 0, byDefault},
		{`200 [` + admitted + `]`, 0, byDefault},
		{`{"limit": "l"}`, 0, byDefault},
		{`{"allowed": "true"}`, 0, byDefault},
		{`{"allowed": true, "limit": "` + strings.Repeat("x", answerAtMost) + `"}`, 0, byDefault},
	} {
		answer := answered.answer // The stub reads it beside the next round.
		s := startStub(t, "tcp", "127.0.0.1:0", answering(func(string) string { return answer }))
		c := newClient(t, s.address, Options{Timeout: patient})
		d, err := c.AllowRequest("l", 1, "a")
		status := 0
		var mistake *Error
		if errors.As(err, &mistake) {
			status = mistake.Status
		}
		if d != answered.decision || status != answered.status || (err == nil) != (status == 0) {
			t.Fatalf("%.200s: %+v, %v", answered.answer, d, err)
		}
		isFailure := status == 0 && d.Source == FromDefault
		if stats := c.Stats(); (stats.Failures == 1) != isFailure || (stats.LastFailure != nil) != isFailure {
			t.Fatalf("%.200s: %+v", answered.answer, stats)
		}
	}
}

var byDefault = Decision{true, "l", Unknown, Unknown, 0, Unknown, false, FromDefault}

func TestHugeQuestionIsNotSent(t *testing.T) {
	s := startStub(t, "tcp", "127.0.0.1:0", answering(func(string) string { return admitted }))
	c := newClient(t, s.address, Options{Timeout: patient})
	d, err := c.AllowRequest("l", 1, strings.Repeat("x", questionAtMost))
	var mistake *Error
	if !errors.As(err, &mistake) || mistake.Status != 413 || d != byDefault || s.connections.Load() != 0 {
		t.Fatalf("%+v, %v", d, err)
	}
}

func TestDeadlineHoldsForBytesThatTrickle(t *testing.T) {
	s := startStub(t, "tcp", "127.0.0.1:0", func(s *stub, conn net.Conn, _ int64) {
		readQuestion(s, bufio.NewReader(conn))
		for _, b := range []byte(whole(admitted)) {
			if _, err := conn.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(hasty / 5) // The whole answer takes two seconds and more, each byte less than the timeout.
		}
	})
	c := newClient(t, s.address, Options{Timeout: hasty})
	begun := time.Now()
	d := decide(t, c, "l", 1, "a")
	if took := time.Since(begun); took < hasty || took > time.Duration(len(whole(admitted)))*hasty/5 {
		t.Fatalf("the decision took %v", took)
	}
	if d != byDefault || c.Stats().Failures != 1 || s.connections.Load() != 1 {
		t.Fatalf("%+v, %+v", d, c.Stats())
	}
}

func TestLateAnswerIsNotTakenForTheNextOne(t *testing.T) {
	isLate := make(chan struct{})
	s := startStub(t, "tcp", "127.0.0.1:0", func(s *stub, conn net.Conn, number int64) {
		if number > 1 {
			answering(func(string) string { return admitted })(s, conn, number)
			return
		}
		readQuestion(s, bufio.NewReader(conn))
		<-isLate
		io.WriteString(conn, whole(fmt.Sprintf(refused, "5000")))
	})
	c := newClient(t, s.address, Options{Timeout: hasty})
	if d := decide(t, c, "l", 1, "a"); d != byDefault {
		t.Fatalf("%+v", d)
	}
	close(isLate)
	c.options.Timeout = patient
	if d := decide(t, c, "l", 1, "b"); !d.Allowed || d.Source != FromGateway {
		t.Fatalf("%+v", d)
	}
	if s.connections.Load() != 2 {
		t.Fatalf("%d connections", s.connections.Load())
	}
}

func TestClosedKeptConnection(t *testing.T) {
	closed := make(chan struct{}, 10)
	s := startStub(t, "tcp", "127.0.0.1:0", func(s *stub, conn net.Conn, _ int64) {
		readQuestion(s, bufio.NewReader(conn))
		io.WriteString(conn, whole(admitted)) // It does not say that it closes.
		conn.Close()
		closed <- struct{}{}
	})
	c := newClient(t, s.address, Options{Timeout: patient})
	for i := int64(1); i <= 3; i++ {
		if d := decide(t, c, "l", 1, "a"); d.Source != FromGateway {
			t.Fatalf("question %d: %+v, %+v", i, d, c.Stats())
		}
		<-closed
		if s.connections.Load() != i || c.Stats().Failures != 0 {
			t.Fatalf("question %d: %d connections, %+v", i, s.connections.Load(), c.Stats())
		}
	}
}

func TestKeptConnectionThatEndsInAnAnswerIsNotAskedAgain(t *testing.T) {
	s := startStub(t, "tcp", "127.0.0.1:0", func(s *stub, conn net.Conn, _ int64) {
		reader := bufio.NewReader(conn)
		readQuestion(s, reader)
		io.WriteString(conn, whole(admitted))
		readQuestion(s, reader)
		io.WriteString(conn, whole(admitted)[:40])
	})
	c := newClient(t, s.address, Options{Timeout: patient})
	if d := decide(t, c, "l", 1, "a"); d.Source != FromGateway {
		t.Fatalf("%+v", d)
	}
	if d := decide(t, c, "l", 1, "a"); d != byDefault || s.questions.Load() != 2 || c.Stats().Failures != 1 {
		t.Fatalf("%+v, %+v", d, c.Stats())
	}
}

func TestConnectionIsNotKeptAfterSuchAnAnswer(t *testing.T) {
	for _, answer := range []string{
		whole(admitted) + whole(fmt.Sprintf(refused, "5000")), // An answer too many.
		strings.Replace(whole(admitted), "\r\n", "\r\nconnection: close\r\n", 1),
		"HTTP/1.1 102 Processing\r\n\r\n",
		"HTTP/1.0 200 OK\r\n\r\n" + admitted,
	} {
		answer := answer // The stub reads it beside the next round.
		s := startStub(t, "tcp", "127.0.0.1:0", func(s *stub, conn net.Conn, _ int64) {
			reader := bufio.NewReader(conn)
			for {
				if _, err := readQuestion(s, reader); err != nil {
					return
				}
				io.WriteString(conn, answer)
				if strings.HasPrefix(answer, "HTTP/1.0") {
					return
				}
			}
		})
		c := newClient(t, s.address, Options{Timeout: patient})
		for i := int64(1); i <= 2; i++ {
			if d := decide(t, c, "l", 1, "a"); !d.Allowed || s.connections.Load() != i || len(c.idle) != 0 {
				t.Fatalf("%q: %+v, %d connections, %d kept", answer, d, s.connections.Load(), len(c.idle))
			}
		}
	}
}

func TestRefusalIsRemembered(t *testing.T) {
	for _, told := range []struct {
		retryAfter string
		step, ends time.Duration
		left       time.Duration // After a step.
	}{
		{"5000", 400 * time.Millisecond, time.Second, 4600 * time.Millisecond},
		{"300", 100 * time.Millisecond, 300 * time.Millisecond, 200 * time.Millisecond},
		{"null", 400 * time.Millisecond, time.Second, Unknown},
	} {
		answer := fmt.Sprintf(refused, told.retryAfter)
		s := startStub(t, "tcp", "127.0.0.1:0", answering(func(string) string { return answer }))
		c, clock := newClockedClient(t, s.address, Options{Timeout: patient})
		first := decide(t, c, "l", 2, "a")
		clock.pass(told.step)
		want := first
		want.RetryAfter, want.Reset, want.Source = told.left, first.Reset-told.step, FromMemory
		if d := decide(t, c, "l", 2, "a"); first.Allowed || first.Source != FromGateway || d != want {
			t.Fatalf("%s: %+v, then %+v", told.retryAfter, first, d)
		}
		clock.pass(told.ends - told.step - 1)
		if d := decide(t, c, "l", 2, "a"); d.Source != FromMemory || s.questions.Load() != 1 {
			t.Fatalf("%s: just before the end: %+v", told.retryAfter, d)
		}
		clock.pass(1)
		if d := decide(t, c, "l", 2, "a"); d.Allowed || d.Source != FromGateway || s.questions.Load() != 2 {
			t.Fatalf("%s: at the end: %+v", told.retryAfter, d)
		}
		if stats := c.Stats(); stats.Asked != 2 || stats.Remembered != 2 {
			t.Fatalf("%+v", stats)
		}
		// Another cost, another limit and another key are other questions.
		decide(t, c, "l", 1, "a")
		decide(t, c, "m", 2, "a")
		decide(t, c, "l", 2, "b")
		decide(t, c, "l", 2, "a", "")
		if s.questions.Load() != 6 {
			t.Fatalf("%d questions", s.questions.Load())
		}
	}
}

func TestRememberedRefusalsAreBounded(t *testing.T) {
	s := startStub(t, "tcp", "127.0.0.1:0", answering(func(string) string { return fmt.Sprintf(refused, "5000") }))
	c, _ := newClockedClient(t, s.address, Options{Timeout: patient, Remember: 2})
	for _, asked := range []struct{ key, source string }{
		{"a", FromGateway}, {"b", FromGateway}, {"a", FromMemory}, {"c", FromGateway}, // b was used least recently.
		{"a", FromMemory}, {"c", FromMemory}, {"b", FromGateway}, {"a", FromGateway},
	} {
		if d := decide(t, c, "l", 1, asked.key); d.Source != asked.source {
			t.Fatalf("%+v: %+v", asked, d)
		}
	}
	if len(c.refusals) != 2 || c.recent.Len() != 2 {
		t.Fatalf("%d and %d are kept", len(c.refusals), c.recent.Len())
	}
}

func TestRestAfterThreeFailures(t *testing.T) {
	isUp := make(chan struct{})
	arrived := make(chan struct{}, 10)
	s := startStub(t, "tcp", "127.0.0.1:0", func(s *stub, conn net.Conn, number int64) {
		if number <= 4 {
			return
		}
		answering(func(string) string {
			arrived <- struct{}{}
			<-isUp
			return admitted
		})(s, conn, number)
	})
	c, clock := newClockedClient(t, s.address, Options{Timeout: patient})
	expect := func(place string, connections int64, failures, skipped uint64) {
		t.Helper()
		stats := c.Stats()
		if s.connections.Load() != connections || stats.Failures != failures || stats.Skipped != skipped {
			t.Fatalf("%s: %d connections, %+v", place, s.connections.Load(), stats)
		}
	}
	ask := func(times int) {
		t.Helper()
		for i := 0; i < times; i++ {
			if d := decide(t, c, "l", 1, "a"); d != byDefault {
				t.Fatalf("%+v", d)
			}
		}
	}
	ask(13)
	expect("rest", 3, 3, 10)
	clock.pass(restTime - 1)
	ask(1)
	expect("end of the rest", 3, 3, 11)
	clock.pass(1)
	ask(2)
	expect("the one that tries fails", 4, 4, 12)
	clock.pass(restTime)
	tried := make(chan Decision)
	go func() {
		d, _ := c.AllowRequest("l", 1, "a")
		tried <- d
	}()
	<-arrived
	ask(3)
	expect("while one tries", 5, 4, 15)
	close(isUp)
	if d := <-tried; d.Source != FromGateway {
		t.Fatalf("%+v", d)
	}
	if d := decide(t, c, "l", 1, "a"); d.Source != FromGateway {
		t.Fatalf("%+v", d)
	}
	expect("back", 5, 4, 15)
}

func TestFailuresThatAreNotInARow(t *testing.T) {
	var count atomic.Int64
	s := startStub(t, "tcp", "127.0.0.1:0", answering(func(string) string {
		if count.Add(1)%3 == 0 {
			return `404 {"detail": "d"}` // A mistake of the caller is an answer.
		}
		return `500 {"detail": "d"}`
	}))
	c, _ := newClockedClient(t, s.address, Options{Timeout: patient})
	for i := 0; i < 12; i++ {
		c.AllowRequest("l", 1, "a")
	}
	if stats := c.Stats(); stats.Asked != 12 || stats.Failures != 8 || stats.Errors != 4 || stats.Skipped != 0 {
		t.Fatalf("%+v", stats)
	}
}

func TestALimitThatCannotBeAskedDoesNotStopTheQuestions(t *testing.T) {
	s := startStub(t, "tcp", "127.0.0.1:0", answering(func(string) string { return `503 {"detail": "d"}` }))
	c, _ := newClockedClient(t, s.address, Options{Timeout: patient})
	for i := 0; i < 9; i++ {
		c.AllowRequest("l", 1, "a")
	}
	if stats := c.Stats(); stats.Asked != 9 || stats.Failures != 9 || stats.Skipped != 0 {
		t.Fatalf("%+v", stats)
	}
}

func TestKeptConnectionsAreBounded(t *testing.T) {
	var waiting sync.WaitGroup
	waiting.Add(8)
	s := startStub(t, "tcp", "127.0.0.1:0", answering(func(string) string {
		waiting.Done()
		waiting.Wait() // All eight questions are here: one connection that all wait for would never get on.
		return admitted
	}))
	c := newClient(t, s.address, Options{Timeout: patient, Idle: 3})
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			c.AllowRequest("l", 1, "a")
		}()
	}
	all.Wait()
	if c.Stats().Failures != 0 || len(c.idle) != 3 {
		t.Fatalf("%d are kept, %+v", len(c.idle), c.Stats())
	}
}

func TestClose(t *testing.T) {
	ended := make(chan struct{})
	s := startStub(t, "tcp", "127.0.0.1:0", func(s *stub, conn net.Conn, number int64) {
		answering(func(string) string { return admitted })(s, conn, number)
		close(ended)
	})
	c := newClient(t, s.address, Options{Timeout: patient})
	decide(t, c, "l", 1, "a")
	c.Close()
	c.Close()
	select {
	case <-ended:
	case <-time.After(patient):
		t.Fatal("the kept connection is still open")
	}
	if d, err := c.AllowRequest("l", 1, "a"); err != ErrClosed || d != byDefault {
		t.Fatalf("%+v, %v", d, err)
	}
}

func TestCloseWhileAQuestionIsUnderWay(t *testing.T) {
	arrived, goOn := make(chan struct{}), make(chan struct{})
	s := startStub(t, "tcp", "127.0.0.1:0", answering(func(string) string {
		close(arrived)
		<-goOn
		return admitted
	}))
	c := newClient(t, s.address, Options{Timeout: patient})
	decided := make(chan Decision)
	go func() {
		d, _ := c.AllowRequest("l", 1, "a")
		decided <- d
	}()
	<-arrived
	c.Close()
	close(goOn)
	if d := <-decided; d.Source != FromGateway || len(c.idle) != 0 {
		t.Fatalf("%+v, %d connections are kept", d, len(c.idle))
	}
}

// ---- Tools ----

func newClient(t *testing.T, address string, options Options) *Client {
	c := New(address, options)
	t.Cleanup(c.Close)
	return c
}

// clock stands still until a test lets time pass.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClockedClient(t *testing.T, address string, options Options) (*Client, *clock) {
	c, clock := newClient(t, address, options), &clock{now: time.Now()}
	c.now = func() time.Time {
		clock.mu.Lock()
		defer clock.mu.Unlock()
		return clock.now
	}
	return c, clock
}

func (c *clock) pass(span time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(span)
}

func decide(t *testing.T, c *Client, limit string, cost int, key ...string) Decision {
	t.Helper()
	d, err := c.AllowRequest(limit, cost, key...)
	check(t, err)
	return d
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
