package abi

import (
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// docRow is a field of a record in ../ABI.md.
type docRow struct {
	offset, size    int
	field, constant string
}

// docRecord is a table of ../ABI.md.
type docRecord struct {
	size int
	rows []docRow
}

func contract(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../ABI.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// docRecords returns the tables of records by the name of their size.
func docRecords(t *testing.T) map[string]*docRecord {
	t.Helper()
	heading := regexp.MustCompile("^### .*, (\\d+) bytes \\(`(\\w+)`\\)$")
	row := regexp.MustCompile("^\\| (\\d+) \\| (\\d+) \\| (?:`([a-z_.]+(?:\\[\\d\\])?)`|\\(zero\\)) \\| (?:`(\\w+)`)? ?\\|")
	records := map[string]*docRecord{}
	var in *docRecord
	for line := range strings.Lines(contract(t)) {
		line = strings.TrimSuffix(line, "\n")
		if m := heading.FindStringSubmatch(line); m != nil {
			n, _ := strconv.Atoi(m[1])
			in = &docRecord{size: n}
			records[m[2]] = in
		} else if strings.HasPrefix(line, "#") {
			in = nil
		}
		if m := row.FindStringSubmatch(line); m != nil && in != nil {
			offset, _ := strconv.Atoi(m[1])
			size, _ := strconv.Atoi(m[2])
			in.rows = append(in.rows, docRow{offset, size, m[3], m[4]})
		}
	}
	return records
}

// constants returns the integer constants of this package by name.
func constants(t *testing.T) map[string]int64 {
	t.Helper()
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range []string{"abi.go", "layout.go", "keys.go"} {
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	config := types.Config{Error: func(error) {}, Importer: noImports{}} // imports are needed for no constant
	pkg, _ := config.Check("abi", set, files, nil)
	all := map[string]int64{}
	for _, name := range pkg.Scope().Names() {
		if c, ok := pkg.Scope().Lookup(name).(*types.Const); ok {
			if v, ok := constant.Int64Val(constant.ToInt(c.Val())); ok && c.Val().Kind() == constant.Int {
				all[name] = v
			}
		}
	}
	return all
}

type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) { return nil, fmt.Errorf("%s", path) }

// layoutPrefixes are the beginnings of the names of offsets, by the name of the record's size.
var layoutPrefixes = map[string]string{
	"ReqSize": "Req", "EndpointSize": "Endpoint", "ZoneSize": "Zone", "OutcomesSize": "Outcomes", "StringSize": "String",
	"RespSize": "Resp", "GroupSize": "Group", "ResultSize": "Result", "ReasonSize": "Reason",
}

func TestContractHasEveryOffset(t *testing.T) {
	records, all := docRecords(t), constants(t)
	if len(records) != len(layoutPrefixes) || len(all) < 100 {
		t.Fatalf("%d tables of records, %d constants", len(records), len(all))
	}
	for size, record := range records {
		end := 0
		documented := map[string]bool{size: true}
		for _, r := range record.rows {
			if r.offset != end {
				t.Errorf("%s: %s%s is at %d, the field before ends at %d", size, r.field, r.constant, r.offset, end)
			}
			end = r.offset + r.size
			if r.offset%r.size != 0 && r.field != "address" {
				t.Errorf("%s: %s is not aligned", size, r.field)
			}
			if (r.field == "") != (r.constant == "") {
				t.Errorf("%s: field %q, constant %q", size, r.field, r.constant)
			}
			if v, ok := all[r.constant]; r.constant != "" && (!ok || v != int64(r.offset)) {
				t.Errorf("%s is %d, in the contract %d", r.constant, v, r.offset)
			}
			documented[r.constant] = true
		}
		if end != record.size || int64(end) != all[size] || end%8 != 0 {
			t.Errorf("%s is %d, the last field ends at %d, the heading says %d", size, all[size], end, record.size)
		}
		for name := range all {
			if rest, ok := strings.CutPrefix(name, layoutPrefixes[size]); ok && rest != "" && !documented[name] && !strings.HasPrefix(name, "RequestMagic") &&
				!strings.HasPrefix(name, "ResponseMagic") {
				t.Errorf("%s is not in the table of %s", name, size)
			}
		}
	}
}

func TestContractHasEveryOtherConstant(t *testing.T) {
	all, text := constants(t), contract(t)
	row := regexp.MustCompile("(?m)^\\| (?:[^0-9\n].*?)?`([A-Z][A-Za-z]+)` \\| (-?\\d+|0x[0-9A-F]+) \\|")
	documented := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		v, err := strconv.ParseInt(m[2], 0, 64)
		if want, ok := all[m[1]]; err != nil || !ok || v != want {
			t.Errorf("%s is %d, in the contract %s", m[1], want, m[2])
		}
		documented[m[1]] = true
	}
	inText := map[string]string{ // not in a table of their own
		"Major": "version 2.1", "Minor": "version 2.1", "AllNeeds": "",
		"LeastRequest": "184 bytes (`LeastRequest`)", "LeastResponse": "56 bytes (`LeastResponse`)",
		"RequestMagic": "0x51524C53", "ResponseMagic": "0x50524C53", "ValueSize": "a string id of 4 bytes (`ValueSize`)",
		"PoolCluster": "0: cluster", "PoolLocal": "1: local", "PolicyInternalLocal": "bit 0: internalTrafficPolicy Local",
		"PolicyExternalLocal": "bit 1: externalTrafficPolicy Local", "FlagKeepDraining": "bit 0: keep the endpoint",
		"BalanceDefault": "0 default", "BalanceRandom": "1 random", "BalanceRoundRobin": "2 round-robin", "BalanceSourceHash": "3 source hash",
		"BalanceLeastConnections": "4 least connections", "LogDebug": "0 debug", "LogInfo": "1 info", "LogWarn": "2 warn", "LogError": "3 error",
	}
	for name := range all {
		isOffset := false
		for _, prefix := range layoutPrefixes {
			isOffset = isOffset || strings.HasPrefix(name, prefix)
		}
		if name[0] < 'A' || name[0] > 'Z' || documented[name] || isOffset && inText[name] == "" {
			continue
		}
		if part, ok := inText[name]; !ok || !strings.Contains(text, part) {
			t.Errorf("%s (%d) is not in the contract", name, all[name])
		}
	}
	for _, kind := range []string{KeyPodLabel + "NAME", KeyPodAnnotation + "NAME", KeyPodCPU, KeyServiceLabel + "NAME", KeyServiceAnnotation + "NAME",
		KeyNodeLabel + "NAME", KeyNamespaceLabel + "NAME"} {
		if !strings.Contains(text, "| `"+kind+"` |") {
			t.Errorf("%s is not in the contract", kind)
		}
	}
	if v := fmt.Sprintf("version %d.%d", Major, Minor); !strings.Contains(text, v) {
		t.Errorf("%s is not in the contract", v)
	}
}

// byContract reads a record by the tables of ../ABI.md.
type byContract struct {
	t       *testing.T
	message []byte
	records map[string]*docRecord
}

func (c *byContract) get(record string, at int, field string) int64 {
	c.t.Helper()
	for _, r := range c.records[record].rows {
		if r.field == field {
			v := make([]byte, 8)
			copy(v, c.message[at+r.offset:][:r.size])
			return int64(binary.LittleEndian.Uint64(v))
		}
	}
	c.t.Fatalf("no field %s in %s", field, record)
	return 0
}

func (c *byContract) header(field string) int { return int(c.get("ReqSize", 0, field)) }

// row returns the offset of a record of a section.
func (c *byContract) row(section string, i int) int {
	return c.header(section+".offset") + i*c.header(section+".stride")
}

func (c *byContract) text(id int64) string {
	if id == 0xFFFFFFFF {
		return ""
	}
	for i := range c.header("strings.count") {
		if at := c.row("strings", i); c.get("StringSize", at, "id") == id {
			return string(c.message[c.get("StringSize", at, "offset"):][:c.get("StringSize", at, "length")])
		}
	}
	c.t.Fatalf("no string %d", id)
	return ""
}

func (c *byContract) value(at int) Value {
	id := int64(binary.LittleEndian.Uint32(c.message[at:]))
	if id == 0xFFFFFFFE {
		return Value{}
	}
	return Value{c.text(id), true}
}

// decode reads a whole request, without its keys.
func (c *byContract) decode() *Request {
	h := func(field string) int64 { return c.get("ReqSize", 0, field) }
	req := &Request{
		Now: h("now_ms"), Namespace: c.text(h("namespace_id")), Service: c.text(h("service_id")), Port: c.text(h("port_name_id")),
		PortNumber: uint16(h("port")), Protocol: uint8(h("protocol")), Family: uint8(h("family")), Pool: uint8(h("pool")),
		InternalPolicyLocal: h("policy")&1 != 0, ExternalPolicyLocal: h("policy")&2 != 0, SessionAffinityMS: h("affinity_ms"),
		Node: c.text(h("node_id")), NodeIndex: uint32(h("node_index")), NodeCount: uint32(h("node_count")), Zone: c.text(h("zone_id")),
		ConnectionsAgeMS: uint32(h("connections_age_ms")), OutcomesWindowMS: uint32(h("outcomes_window_ms")), Generation: uint64(h("generation")),
		State: c.message[h("state_offset"):][:h("state_length")],
	}
	for i := range c.header("zones.count") {
		z := func(field string) int64 { return c.get("ZoneSize", c.row("zones", i), field) }
		req.Zones = append(req.Zones, Zone{c.text(z("zone_id")), uint32(z("nodes")), uint32(z("ready")), uint32(z("serving")), uint32(z("total")), uint64(z("millicores"))})
	}
	for i := range c.header("service_values_count") {
		req.ServiceValues = append(req.ServiceValues, c.value(c.header("service_values_offset")+4*i))
	}
	for i := range c.header("endpoints.count") {
		at := c.row("endpoints", i)
		f := func(field string) int64 { return c.get("EndpointSize", at, field) }
		e := Endpoint{
			Addr:       netip.AddrPortFrom(netip.AddrFrom16([16]byte(c.message[at:])).Unmap(), uint16(f("port"))),
			Conditions: uint32(f("conditions")), Node: c.text(f("node_id")), Zone: c.text(f("zone_id")), Pod: c.text(f("pod_id")),
			Capacity: uint32(f("capacity")), Share: uint32(f("share")), Group: uint16(f("group")), PriorWeight: int32(f("prior_weight")), ReadySince: f("ready_since_ms"),
			TerminatingSince: f("terminating_since_ms"), Connections: uint32(f("connections")),
		}
		if c.header("outcomes.count") > 0 {
			o := func(field string) int64 { return c.get("OutcomesSize", c.row("outcomes", i), field) }
			e.Outcomes = Outcomes{
				uint32(o("attempts")), uint32(o("answered")), uint32(o("refused")), uint32(o("unanswered")),
				uint64(o("total_attempts")), uint64(o("total_answered")), uint64(o("total_refused")), uint64(o("total_unanswered")), o("since_ms"),
			}
		}
		for k := range c.header("pod_keys") {
			e.Values = append(e.Values, c.value(c.row("values", i)+4*k))
		}
		req.Endpoints = append(req.Endpoints, e)
	}
	for i := range c.header("endpoint_states.count") {
		req.EndpointStates = append(req.EndpointStates, c.message[c.row("endpoint_states", i):][:MaxEndpointState]...)
	}
	for i := range c.header("groups.count") {
		req.Groups = append(req.Groups, uint32(c.get("GroupSize", c.row("groups", i), "part")))
	}
	return req
}

// TestRequestsDecodeByTheContract decodes random requests by the tables alone.
func TestRequestsDecodeByTheContract(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 9))
	var e Encoder
	records := docRecords(t)
	keys := []string{"label:a", "namespace-label:a", KeyNodeLabel + "b", "service-annotation:b"}
	word := func() string { return []string{"", "a", "zone-b", strings.Repeat("long ", 9)}[rnd.IntN(4)] }
	value := func() Value { return []Value{{}, {"", true}, {word(), true}}[rnd.IntN(3)] }
	for round := range 300 {
		req := sample(rnd.IntN(9))
		req.NodeIndex, req.NodeCount, req.ConnectionsAgeMS, req.OutcomesWindowMS, req.State = rnd.Uint32(), rnd.Uint32(), rnd.Uint32(), 1+rnd.Uint32N(99), nil
		for range rnd.IntN(9) {
			req.State = append(req.State, byte(rnd.Uint32()))
		}
		req.ServiceValues, req.Groups = []Value{value(), value()}, nil
		for range rnd.IntN(3) {
			req.Groups = append(req.Groups, rnd.Uint32())
		}
		for range len(req.Endpoints) * MaxEndpointState * rnd.IntN(2) {
			req.EndpointStates = append(req.EndpointStates, byte(rnd.Uint32()))
		}
		for i := range req.Zones {
			req.Zones[i].Serving, req.Zones[i].Total = rnd.Uint32(), rnd.Uint32()
		}
		for i := range req.Endpoints {
			e := &req.Endpoints[i]
			e.Pod, e.Values, e.Connections, e.Conditions = word(), []Value{value(), value()}, rnd.Uint32(), rnd.Uint32()
			e.TerminatingSince, e.Capacity, e.Share, e.Group = rnd.Int64(), rnd.Uint32(), rnd.Uint32(), uint16(rnd.Uint32())
			e.Outcomes = Outcomes{
				rnd.Uint32(), rnd.Uint32(), rnd.Uint32(), rnd.Uint32(), rnd.Uint64(), rnd.Uint64(), rnd.Uint64(), rnd.Uint64(), rnd.Int64(),
			}
		}
		req.Keys = keys
		b := e.AppendRequest(nil, req, View{Settings: 7, Needs: AllNeeds, Keys: keys})
		c := &byContract{t, b, records}
		if c.header("magic") != RequestMagic || c.header("total") != len(b) || c.header("header_length") != 200 || c.header("settings") != 7 {
			t.Fatalf("header % x", b[:200])
		}
		req.Keys = nil
		if got, want := fmt.Sprintf("%+v", c.decode()), fmt.Sprintf("%+v", req); got != want {
			t.Fatalf("round %d:\ngot  %s\nwant %s", round, got, want)
		}
	}
}
