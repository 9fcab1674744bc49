package policy

import "github.com/sluice-proxy/sluice/host/core/model"

// chooser knows the policies that the annotations of Services choose.
type chooser struct {
	choices map[model.Name]string // the last one
}

// Applicable returns the policies that decide about a Service, now or when guards change: for each port those with a guard that
// apply to it, in order of precedence, and then the one that applies without them.
func (c *chooser) Applicable(s *Set, svc *model.Service) []*Policy {
	return s.applicable(svc, c.choices[svc.Name])
}

// Chosen appends the policies of a Service's ports to a list, in their order, and at least one, see Set.For, after what its
// annotation has chosen before.
func (c *chooser) Chosen(s *Set, svc *model.Service, ports []*Policy) (_ []*Policy, err *ChoiceError) {
	var p *Policy
	for i := range max(1, len(svc.Ports)) {
		if i == 0 || !s.samePorts(svc) {
			p, err = s.For(svc, portName(svc, i), c.choices[svc.Name])
		}
		ports = append(ports, p)
	}
	return ports, err
}

// Candidates returns Set.Candidates of a port, after what the annotation of its Service has chosen before.
func (c *chooser) Candidates(s *Set, svc *model.Service, port string) []Candidate {
	return s.Candidates(svc, port, c.choices[svc.Name])
}

// Choose is Chosen, and remembers what the annotation chooses.
func (c *chooser) Choose(s *Set, svc *model.Service, ports []*Policy) ([]*Policy, *ChoiceError) {
	ports, err := c.Chosen(s, svc, ports)
	switch {
	case svc.Policy == "":
		c.DeleteChoice(svc.Name)
	case err == nil:
		c.choices[svc.Name] = svc.Policy
	}
	return ports, err
}

// DeleteChoice deletes what the annotation of a Service has chosen.
func (c *chooser) DeleteChoice(name model.Name) {
	if len(c.choices) > 0 {
		delete(c.choices, name)
	}
}
