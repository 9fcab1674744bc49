package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// The JSON form, as printed by `sluice plan -o json`. Its field names are stable.

type planJSON struct {
	Global    globalJSON     `json:"global"`
	Frontends []frontendJSON `json:"frontends"`
}

type globalJSON struct {
	NodePortAddresses []netip.Addr   `json:"nodePortAddresses,omitempty"`
	LocalhostAddrs    []netip.Addr   `json:"localhostAddresses,omitempty"`
	PodSources        []netip.Prefix `json:"podSources,omitempty"`
	PodInterfaces     []string       `json:"podInterfaces,omitempty"`
	ServiceCIDRs      []netip.Prefix `json:"serviceCIDRs,omitempty"`
	NoMasqueradeCIDRs []netip.Prefix `json:"noMasqueradeCIDRs,omitempty"`
	MasqueradeMark    uint32         `json:"masqueradeMark"`
}

type frontendJSON struct {
	Namespace    string         `json:"namespace"`
	Service      string         `json:"service"`
	PortName     string         `json:"portName,omitempty"`
	Kind         *Kind          `json:"kind"` // a pointer to distinguish a missing kind from ClusterIP
	Family       string         `json:"family"`
	Address      *netip.Addr    `json:"address,omitempty"` // none for a NodePort
	Port         uint16         `json:"port"`
	Protocol     string         `json:"protocol"`
	Masquerade   Masquerade     `json:"masquerade"`
	Affinity     string         `json:"affinity,omitempty"` // as 3h0m0s
	Balance      Balance        `json:"balance"`
	Outcomes     bool           `json:"outcomes,omitempty"` // whether they are counted
	RetryRefused bool           `json:"retryRefused,omitempty"`
	LongLived    bool           `json:"longLived,omitempty"` // whether flows are offloaded
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	Pool         poolJSON       `json:"pool"`
	Outside      *poolJSON      `json:"outside,omitempty"`
}

type poolJSON struct {
	Verdict   Verdict        `json:"verdict"`
	Total     int            `json:"total"` // derived; ignored when read
	Endpoints []endpointJSON `json:"endpoints,omitempty"`
}

type endpointJSON struct {
	Address  netip.AddrPort `json:"address"`
	Weight   uint16         `json:"weight"`
	Refused  bool           `json:"refused,omitempty"` // the connections are refused, see Refusing; derived; ignored when read
	Share    float64        `json:"share"`             // of new connections, 0 to 1; derived; ignored when read
	Phase    Phase          `json:"phase"`
	Deadline *time.Time     `json:"deadline,omitempty"`
}

// MarshalJSON returns the JSON form, with frontends sorted by Service port and key.
func (p *Plan) MarshalJSON() ([]byte, error) {
	g := p.Global
	out := planJSON{
		Global:    globalJSON{g.NodePortAddrs, g.LocalhostAddrs, g.PodSources, g.PodInterfaces, g.ServiceCIDRs, g.NoMasquerade, g.MasqueradeMark},
		Frontends: make([]frontendJSON, 0, len(p.Frontends)),
	}
	for _, f := range p.byOwner() {
		j := frontendJSON{
			Namespace: f.Owner.Service.Namespace, Service: f.Owner.Service.Name, PortName: f.Owner.Port,
			Kind: &f.Kind, Family: f.Key.Family().String(), Port: f.Key.Port, Protocol: f.Key.Protocol.String(),
			Masquerade: f.Masquerade, Balance: f.Balance, Outcomes: f.Outcomes, RetryRefused: f.RetryRefused, LongLived: f.LongLived,
			SourceRanges: f.SourceRanges, Pool: poolToJSON(&f.Pool),
		}
		if !f.Key.IsNodePort() {
			j.Address = &f.Key.Addr
		}
		if f.Affinity != 0 {
			j.Affinity = f.Affinity.String()
		}
		if f.Outside != nil {
			o := poolToJSON(f.Outside)
			j.Outside = &o
		}
		out.Frontends = append(out.Frontends, j)
	}
	return json.Marshal(out)
}

func poolToJSON(p *Pool) poolJSON {
	out := poolJSON{Verdict: p.Verdict, Total: p.Total()}
	for _, m := range p.Endpoints {
		j := endpointJSON{Address: m.Addr, Refused: IsRefusing(m.Addr.Addr()), Weight: m.Weight, Phase: m.Phase}
		if out.Total > 0 {
			j.Share = math.Round(1e4*float64(m.Weight)/float64(out.Total)) / 1e4
		}
		if m.Deadline != 0 {
			t := time.UnixMilli(m.Deadline).UTC()
			j.Deadline = &t
		}
		out.Endpoints = append(out.Endpoints, j)
	}
	return out
}

// UnmarshalJSON parses the JSON form. Unknown fields, duplicate frontends and plans that Validate rejects are errors. After an
// error p is unchanged.
func (p *Plan) UnmarshalJSON(data []byte) error {
	var in planJSON
	if err := strictJSON(data, &in); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	g := in.Global
	out := Plan{
		Global:    Global{g.NodePortAddresses, g.LocalhostAddrs, g.PodSources, g.PodInterfaces, g.ServiceCIDRs, g.NoMasqueradeCIDRs, g.MasqueradeMark},
		Frontends: make(map[Key]*Frontend, len(in.Frontends)),
	}
	for i := range in.Frontends {
		f, err := in.Frontends[i].frontend()
		if err != nil {
			return fmt.Errorf("plan: frontends[%d]: %w", i, err)
		}
		if out.Frontends[f.Key] != nil {
			return fmt.Errorf("plan: frontends[%d]: %s: duplicate", i, f.Key)
		}
		out.Frontends[f.Key] = f
	}
	if err := Validate(&out); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	*p = out
	return nil
}

func (j *frontendJSON) frontend() (*Frontend, error) {
	f := &Frontend{
		Masquerade: j.Masquerade, Balance: j.Balance, Outcomes: j.Outcomes, RetryRefused: j.RetryRefused, LongLived: j.LongLived, SourceRanges: j.SourceRanges,
		Owner: model.PortName{Service: model.Name{Namespace: j.Namespace, Name: j.Service}, Port: j.PortName},
	}
	if j.Kind == nil {
		return nil, fmt.Errorf("kind: missing")
	}
	f.Kind = *j.Kind
	var ok bool
	if f.Key.Protocol, ok = model.ParseProtocol(j.Protocol); !ok {
		return nil, fmt.Errorf("protocol %q: want TCP, UDP or SCTP", j.Protocol)
	}
	f.Owner.Protocol, f.Key.Port = f.Key.Protocol, j.Port
	switch {
	case j.Family != model.IPv4.String() && j.Family != model.IPv6.String():
		return nil, fmt.Errorf("family %q: want IPv4 or IPv6", j.Family)
	case (*j.Kind == NodePort) != (j.Address == nil):
		return nil, fmt.Errorf("address: every kind but NodePort has one; this is a %s", j.Kind)
	case j.Address != nil:
		f.Key.Addr = *j.Address
	case j.Family == model.IPv4.String():
		f.Key.Addr = netip.IPv4Unspecified()
	default:
		f.Key.Addr = netip.IPv6Unspecified()
	}
	if f.Key.Family().String() != j.Family {
		return nil, fmt.Errorf("family %s, but address %s", j.Family, f.Key.Addr)
	}
	if j.Affinity != "" {
		d, err := time.ParseDuration(j.Affinity)
		if err != nil {
			return nil, fmt.Errorf("affinity: %w", err)
		}
		f.Affinity = d
	}
	var err error
	if f.Pool, err = j.Pool.pool(); err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	if j.Outside != nil {
		o, err := j.Outside.pool()
		if err != nil {
			return nil, fmt.Errorf("outside: %w", err)
		}
		f.Outside = &o
	}
	return f, nil
}

func (j *poolJSON) pool() (Pool, error) {
	p := Pool{Verdict: j.Verdict}
	for i, m := range j.Endpoints {
		n := Endpoint{Addr: m.Address, Weight: m.Weight, Phase: m.Phase}
		if m.Deadline != nil {
			if n.Deadline = m.Deadline.UnixMilli(); n.Deadline <= 0 || m.Deadline.Nanosecond()%1e6 != 0 {
				return Pool{}, fmt.Errorf("endpoints[%d]: deadline %s: want whole milliseconds after 1970", i, m.Deadline.Format(time.RFC3339Nano))
			}
		}
		p.Endpoints = append(p.Endpoints, n)
	}
	return p, nil
}

func strictJSON(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}
