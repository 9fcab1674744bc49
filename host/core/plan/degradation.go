package plan

import (
	"encoding/json"
	"fmt"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Degradation is a part of a plan that a backend cannot represent.
type Degradation struct {
	Frontend Key
	Owner    model.PortName
	Wanted   string
	Got      string
	Why      string
	Limit    string // the field of serviceLimits that is exceeded, if that is why
}

// String returns a human-readable line.
func (d Degradation) String() string {
	return fmt.Sprintf("%s %s: wanted %s, got %s: %s", d.Owner, d.Frontend, d.Wanted, d.Got, d.Why)
}

type degradationJSON struct {
	Frontend  string `json:"frontend"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	PortName  string `json:"portName,omitempty"`
	Wanted    string `json:"wanted"`
	Got       string `json:"got"`
	Why       string `json:"why"`
}

// MarshalJSON returns the JSON form. The frontend is the result of Key.String.
func (d Degradation) MarshalJSON() ([]byte, error) {
	svc := d.Owner.Service
	return json.Marshal(degradationJSON{d.Frontend.String(), svc.Namespace, svc.Name, d.Owner.Port, d.Wanted, d.Got, d.Why})
}

// UnmarshalJSON parses the JSON form and rejects unknown fields.
func (d *Degradation) UnmarshalJSON(data []byte) error {
	var in degradationJSON
	if err := strictJSON(data, &in); err != nil {
		return fmt.Errorf("degradation: %w", err)
	}
	k, err := ParseKey(in.Frontend)
	if err != nil {
		return fmt.Errorf("degradation: frontend: %w", err)
	}
	owner := model.PortName{Service: model.Name{Namespace: in.Namespace, Name: in.Service}, Port: in.PortName, Protocol: k.Protocol}
	*d = Degradation{Frontend: k, Owner: owner, Wanted: in.Wanted, Got: in.Got, Why: in.Why}
	return nil
}
