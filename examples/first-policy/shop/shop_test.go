package main

import (
	"strings"
	"testing"
)

// TestServicesWithoutServersAreNamed: a connection to one would wait for a minute.
func TestServicesWithoutServersAreNamed(t *testing.T) {
	s, err := readShop("../../boutique/manifests")
	if err != nil {
		t.Fatal(err)
	}
	for name := range s.Services {
		if name.Namespace != namespace {
			continue
		}
		_, err := s.address(name.Name)
		if served := name.Name == "catalog" || name.Name == "frontend"; served != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for service, want := range map[string]string{"cart": "no server runs in the Pods of Service cart: want one of catalog, frontend", "none": "no Service shop/none with a port"} {
		if _, err := s.address(service); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", service, err, want)
		}
	}
}
