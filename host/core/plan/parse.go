package plan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Parse parses the text form: Parse(Format(p)) equals p for every valid p. Unknown words, duplicates and plans that Validate
// rejects are errors; they name the line. Indentation, blank lines and comments from # to the end of the line are ignored.
// Counts, totals and shares may be omitted, and are checked otherwise.
func Parse(text string) (*Plan, error) {
	r := &parser{plan: &Plan{Frontends: map[Key]*Frontend{}}, lines: map[Key]int{}}
	for line := range strings.Lines(text) {
		r.line++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := r.read(words); err != nil {
			return nil, fmt.Errorf("line %d: %w", r.line, err)
		}
	}
	r.line++
	if err := r.endFrontend(); err != nil {
		return nil, err
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	return r.plan, nil
}

// parser is the state of Parse.
type parser struct {
	plan    *Plan
	line    int
	lines   map[Key]int // first line of each frontend
	global  int         // line of "global"; 0: not yet
	seen    []string    // fields of global
	service model.Name
	f       *Frontend
	pool    *parsedPool // the pool of the next endpoint line
	pooled  bool        // f has its pool
	pools   []*parsedPool
}

// parsedPool is a pool with its derived values in the text, which are checked at the end of the frontend.
type parsedPool struct {
	pool    *Pool
	line    int
	summary string // "2 endpoints, total 7", "" when omitted
	shares  []derivedFields
}

// derivedFields are the derived values of an endpoint in the text.
type derivedFields struct {
	line  int
	share string // "" when omitted
}

func (r *parser) read(words []string) error {
	first, rest := words[0], words[1:]
	switch first {
	case "global":
		if r.global != 0 || r.service != (model.Name{}) {
			return errors.New("global: must occur once, before all services")
		}
		r.global = r.line
		return noMore(first, rest)
	case "node-port-addresses", "localhost-addresses", "pod-sources", "pod-interfaces", "service-cidrs", "no-masquerade-cidrs", "masquerade-mark":
		return r.readGlobal(first, rest)
	case "service":
		return r.readService(rest)
	case "port":
		return r.readPort(rest)
	}
	if r.f == nil {
		return fmt.Errorf("%q: want global, service or port", first)
	}
	switch first {
	case "source-ranges":
		if r.f.SourceRanges != nil || r.pooled {
			return errors.New("source-ranges: must occur once, before the pool")
		}
		var err error
		r.f.SourceRanges, err = parseAll(first, rest, netip.ParsePrefix)
		return err
	case "outside":
		if r.f.Outside != nil || !r.pooled {
			return errors.New("outside: must occur once, after the frontend's pool")
		}
		r.f.Outside = &Pool{}
		return r.readPool(r.f.Outside, rest)
	}
	if slices.Contains(verdictNames, first) {
		if r.pooled {
			return fmt.Errorf("%s: %s already has a pool", first, r.f.Key)
		}
		r.pooled = true
		return r.readPool(&r.f.Pool, words)
	}
	return r.readEndpoint(words)
}

func (r *parser) readGlobal(field string, values []string) (err error) {
	if r.global == 0 || r.service != (model.Name{}) {
		return fmt.Errorf("%s: must follow global", field)
	}
	if slices.Contains(r.seen, field) {
		return fmt.Errorf("%s: duplicate", field)
	}
	r.seen = append(r.seen, field)
	g := &r.plan.Global
	switch field {
	case "node-port-addresses":
		g.NodePortAddrs, err = parseAll(field, values, netip.ParseAddr)
	case "localhost-addresses":
		g.LocalhostAddrs, err = parseAll(field, values, netip.ParseAddr)
	case "pod-sources":
		g.PodSources, err = parseAll(field, values, netip.ParsePrefix)
	case "pod-interfaces":
		g.PodInterfaces, err = parseAll(field, values, func(s string) (string, error) { return s, nil })
	case "service-cidrs":
		g.ServiceCIDRs, err = parseAll(field, values, netip.ParsePrefix)
	case "no-masquerade-cidrs":
		g.NoMasquerade, err = parseAll(field, values, netip.ParsePrefix)
	case "masquerade-mark":
		var mark uint64
		if len(values) == 1 {
			mark, err = strconv.ParseUint(values[0], 0, 32)
		}
		if len(values) != 1 || err != nil || mark == 0 {
			return fmt.Errorf("%s: want one number with one bit, such as 0x4000", field)
		}
		g.MasqueradeMark = uint32(mark)
	}
	return err
}

func (r *parser) readService(rest []string) error {
	if err := r.endFrontend(); err != nil {
		return err
	}
	if len(rest) != 1 {
		return errors.New("service: want namespace/name")
	}
	ns, name, ok := strings.Cut(rest[0], "/")
	if !ok || !isName(ns) || !isName(name) {
		return fmt.Errorf("service %q: want namespace/name", rest[0])
	}
	r.service = model.Name{Namespace: ns, Name: name}
	return nil
}

// readPort reads "port NAME KEY KIND [SETTING=VALUE…]".
func (r *parser) readPort(rest []string) error {
	if err := r.endFrontend(); err != nil {
		return err
	}
	if r.service == (model.Name{}) {
		return errors.New("port: must follow a service")
	}
	if len(rest) < 3 {
		return errors.New("port: want a name, address:port/protocol and a kind")
	}
	k, err := ParseKey(rest[1])
	if err != nil {
		return err
	}
	if at := r.lines[k]; at != 0 {
		return fmt.Errorf("%s: duplicate of line %d", k, at)
	}
	f := &Frontend{Key: k, Owner: model.PortName{Service: r.service, Protocol: k.Protocol}}
	if rest[0] != "-" {
		f.Owner.Port = rest[0]
	}
	if f.Kind, err = parseName[Kind](kindNames, rest[2], "kind"); err != nil {
		return fmt.Errorf("%s: %w", k, err)
	}
	seen := map[string]bool{}
	for _, w := range rest[3:] {
		name, text, _ := strings.Cut(w, "=")
		if seen[name] {
			return fmt.Errorf("%s: %s: duplicate", k, name)
		}
		seen[name] = true
		switch name {
		case "masquerade":
			f.Masquerade, err = parseName[Masquerade](masqueradeNames, text, name)
		case "balance":
			f.Balance, err = parseName[Balance](balanceNames, text, name)
		case "affinity":
			f.Affinity, err = time.ParseDuration(text)
		case "outcomes":
			if f.Outcomes = text == outcomesCounted; !f.Outcomes {
				err = fmt.Errorf("outcomes %q: want %s", text, outcomesCounted)
			}
		case "refused":
			if f.RetryRefused = text == refusedRetried; !f.RetryRefused {
				err = fmt.Errorf("refused %q: want %s", text, refusedRetried)
			}
		case "flows":
			if f.LongLived = text == flowsOffloaded; !f.LongLived {
				err = fmt.Errorf("flows %q: want %s", text, flowsOffloaded)
			}
		default:
			err = fmt.Errorf("%q: want masquerade=, affinity=, balance=, outcomes=, refused= or flows=", w)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
	}
	r.f, r.pooled, r.lines[k] = f, false, r.line
	return nil
}

// readPool reads "VERDICT" or "VERDICT N endpoints, total T".
func (r *parser) readPool(p *Pool, words []string) (err error) {
	if len(words) == 0 {
		return fmt.Errorf("%s: outside: want a verdict", r.f.Key)
	}
	if p.Verdict, err = parseName[Verdict](verdictNames, words[0], "verdict"); err != nil {
		return fmt.Errorf("%s: %w", r.f.Key, err)
	}
	r.pool = &parsedPool{pool: p, line: r.line, summary: strings.Join(words[1:], " ")}
	r.pools = append(r.pools, r.pool)
	return nil
}

// readEndpoint reads "ADDRESS:PORT weight N [SHARE %] [PHASE [until TIME]]", where ADDRESS may be "refused".
func (r *parser) readEndpoint(words []string) error {
	text := words[0]
	if port, refused := strings.CutPrefix(text, refusedAddr+":"); refused {
		text = net.JoinHostPort(Refusing(r.f.Key.Family()).String(), port)
	}
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		return fmt.Errorf("%q: want a verdict, an endpoint's address:port, or a word of a frontend", words[0])
	}
	if r.pool == nil {
		return fmt.Errorf("endpoint %s: must follow a verdict", addr)
	}
	if len(words) < 3 || words[1] != "weight" {
		return fmt.Errorf("endpoint %s: want weight and a number", addr)
	}
	n, err := strconv.ParseUint(words[2], 10, 16)
	if err != nil {
		return fmt.Errorf("endpoint %s: weight %q: want 0 to 65535", addr, words[2])
	}
	m, c := Endpoint{Addr: addr, Weight: uint16(n)}, derivedFields{line: r.line}
	rest := words[3:]
	if len(rest) >= 2 && rest[1] == "%" {
		c.share, rest = rest[0], rest[2:]
	}
	if len(rest) > 0 {
		if m.Phase, err = parseName[Phase](phaseNames, rest[0], "phase"); err != nil {
			return fmt.Errorf("endpoint %s: %w", addr, err)
		}
		rest = rest[1:]
	}
	if len(rest) >= 2 && rest[0] == "until" {
		t, err := time.Parse(time.RFC3339, rest[1])
		if err != nil || t.Nanosecond()%1e6 != 0 || t.UnixMilli() <= 0 {
			return fmt.Errorf("endpoint %s: until %q: want a time after 1970 such as 2026-01-31T10:00:00.000Z", addr, rest[1])
		}
		m.Deadline, rest = t.UnixMilli(), rest[2:]
	}
	r.pool.pool.Endpoints = append(r.pool.pool.Endpoints, m)
	r.pool.shares = append(r.pool.shares, c)
	return noMore("endpoint "+addr.String(), rest)
}

// endFrontend checks the derived values of the current frontend and adds it to the plan.
func (r *parser) endFrontend() error {
	f := r.f
	if f == nil {
		return nil
	}
	if !r.pooled {
		return fmt.Errorf("%s on line %d: no verdict", f.Key, r.lines[f.Key])
	}
	for _, c := range r.pools {
		total := c.pool.Total()
		want := poolSummary(len(c.pool.Endpoints), total)
		if c.summary != "" && c.summary != want {
			return fmt.Errorf("%s on line %d: %q, want %q", f.Key, c.line, c.summary, want)
		}
		for i, s := range c.shares {
			if want := percent(c.pool.Endpoints[i].Weight, total); s.share != "" && s.share != want {
				return fmt.Errorf("%s on line %d: share %q, want %s %%", f.Key, s.line, s.share, want)
			}
		}
	}
	r.plan.Frontends[f.Key] = f
	r.f, r.pool, r.pooled, r.pools = nil, nil, false, nil
	return nil
}

// validate is Validate with line numbers.
func (r *parser) validate() error {
	var errs []error
	for _, err := range r.plan.Global.check(len(r.plan.Frontends) == 0) {
		errs = append(errs, fmt.Errorf("line %d: %w", max(r.global, 1), err))
	}
	for _, k := range r.plan.Keys() {
		for _, err := range checkFrontend(k, r.plan.Frontends[k]) {
			errs = append(errs, fmt.Errorf("line %d: %w", r.lines[k], err))
		}
	}
	return errors.Join(append(errs, r.plan.checkAffinity()...)...)
}

func parseAll[T any](field string, words []string, parse func(string) (T, error)) ([]T, error) {
	if len(words) == 0 {
		return nil, fmt.Errorf("%s: want at least one", field)
	}
	out := make([]T, len(words))
	for i, w := range words {
		v, err := parse(w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		out[i] = v
	}
	return out, nil
}

func noMore(what string, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("%s: unexpected %q", what, strings.Join(rest, " "))
	}
	return nil
}
