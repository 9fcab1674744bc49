# sluice: build, try, test, measure. `make help` lists the targets.

GO          ?= go
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
CONTROLLERGEN := sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0
# Found out once, so that all steps of a target agree while files are edited.
ifndef VERSION
VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
endif
# The packages of both Go modules: sdk has a module of its own.
ALL         := ./... github.com/sluice-proxy/sluice/sdk/...
PLUGINS     := $(patsubst plugins/%/main.go,%,$(wildcard plugins/*/main.go))

export CGO_ENABLED := 0
# Go's build cache has compiled packages for one set of flags: all targets and tests compile as images are built, and each package once.
export GOFLAGS := $(strip $(filter-out -trimpath,$(GOFLAGS)) -trimpath)

.PHONY: help build plugins image krew man release test-release demo experiment quick race test test-all test-sdk test-cluster cluster-programs node-programs cluster cluster-down test-realcluster test-nodes test-cni test-handover e2e e2e-faults experiment-pods test-vm test-ipvs test-guide test-compat test-arm64 test-arm64-user test-arm64-guest vm-arm64 vm-kernels \
  compiled-plugins bench bench-peer bench-peer-base bench-dataplane bench-fleet soak fuzz check generate fmt lint format-check vet deps clean

help:
	@cat .ci/help.txt

build: plugins
	$(GO) build -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/sluice ./cmd/kubectl-sluice

plugins: $(PLUGINS:%=bin/plugins/%.wasm)

# Builds a Go guest; the build cache makes this fast if nothing has changed. No -buildvcs: a module's digest must not depend
# on the clone in which it is built.
GUEST := GOOS=wasip1 GOARCH=wasm $(GO) build -trimpath -buildvcs=false -buildmode=c-shared -ldflags='-s -w'

# Puts the plugin.json of a folder into a module.
EMBED := $(GO) run github.com/sluice-proxy/sluice/sdk/manifest/embed

bin/plugins/%.wasm: FORCE
	@mkdir -p bin/plugins
	$(GUEST) -o $@ ./plugins/$*
	@$(EMBED) $@ plugins/$*

bin/e2e/%.wasm: FORCE
	@mkdir -p bin/e2e
	$(GUEST) -o $@ ./cmd/sluice/e2e/$*
	@$(EMBED) $@ cmd/sluice/e2e/$*

FORCE:

# Builds everything itself, so that the image depends on the sources only; prints its digest. COMPILED are the platforms for which it
# has machine code of its plugins; for another architecture than this machine's, that needs qemu-user.
COMPILED    ?= linux/amd64
image:
	$(GO) run ./deploy/image -compiled '$(COMPILED)' -o bin/image -tar bin/sluice-image.tar -version $(VERSION) \
	  -revision "$$(git rev-parse HEAD 2>/dev/null)" -time "$$(git log -1 --format=%ct 2>/dev/null)"

# Archives and manifest of the kubectl plugin, for krew.
krew:
	$(GO) run ./deploy/krew -version $(VERSION)

# Everything of a release, from a clean clone: deploy/release/README.md.
release:
	$(GO) run ./deploy/release -version '$(VERSION)' -repository '$(REPOSITORY)' $(if $(KEY),-key '$(KEY)') $(if $(VULNDB),-vulndb '$(VULNDB)')

# A release, made from two clones, and used with cosign, Helm and a registry: of what is committed. Minutes.
test-release:
	SLUICE_TEST_RELEASE=1 $(GO) test -vet=off -count=1 -v -timeout 45m ./deploy/release

# The man pages of all commands, from their help texts.
man:
	$(GO) run -tags man ./cmd/sluice man bin/man

demo: build
	$(GUEST) -o bin/demo-runaway.wasm ./examples/demo/runaway
	@$(EMBED) bin/demo-runaway.wasm examples/demo/runaway
	$(GO) build -o bin/demo ./examples/demo
	bin/demo -svg bin/demo-drain.svg

# Rolling restarts, scale-ups and failing endpoints, with and without policies, in mode nftables, and the restarts in mode ipvs, if this
# kernel has IPVS or there is a test kernel (make vm-kernels), where six times as slow is fast enough.
experiment: build
	$(GO) build -o bin/drain-experiment ./examples/drain-experiment
	$(GO) build -o bin/vm ./host/lab/vm/run
	bin/drain-experiment -svg bin/experiment.svg
	@if [ -e /proc/net/ip_vs ]; then set -x; bin/drain-experiment -mode ipvs -run '$(IPVS_RUNS)'; \
	  elif [ -z "$$(bin/vm build -missing $(lastword $(KERNELS)))" ]; then \
	    set -x; XDG_CACHE_HOME='$(CACHE)' $(VM) -memory 2048 -kernel $(lastword $(KERNELS)) bin/drain-experiment -mode ipvs -slower 6 -run '$(IPVS_RUNS)'; \
	  else echo 'mode ipvs: this kernel has no IPVS, and there is no test kernel: make vm-kernels'; fi

IPVS_RUNS   := restart.*, preStop

# Firewalls and others beside sluice, which COMPATIBILITY.md is about: Debian's firewalld, ufw, Docker, keepalived and portmap, extracted
# into the user's cache, in network namespaces; in mode ipvs on the newest test kernel; and the nft of Debian's releases. As root on Debian.
test-compat: deps build vm-kernels
	roots=$$(.ci/nft-roots) && SLUICE_NFT_ROOTS="$$roots" $(GO) test -vet=off -count=1 -run 'TestSavedRulesets|TestKubeProxysNft' ./host/backend/nftables
	root=$$(.ci/compat-root) && export SLUICE_COMPAT_ROOT="$$root" SLUICE_BINARY='$(CURDIR)/bin/sluice' XDG_CACHE_HOME='$(CACHE)' && \
	  $(GO) test -vet=off -count=1 -timeout 15m -run TestBeside ./cmd/sluice/e2e && \
	  SLUICE_MODE=ipvs $(GO) test -vet=off -count=1 -timeout 15m -run TestBeside -exec "$(VM) -kernel $(lastword $(KERNELS))" ./cmd/sluice/e2e

# The example policies of the SDKs: built in each language, called with the same requests, and proved against the ABI; then sluice's host and
# one in JavaScript, with the conformance kit. Prints sizes, times and reports.
test-sdk: deps
	SLUICE_TEST_SDK=1 $(GO) test -count=1 -v -run 'TestSDK|TestEveryInput' ./host/plugin/wasm ./host/plugin/wasm/abiconformance \
	  ./host/lab/tckhost github.com/sluice-proxy/sluice/sdk/tck/hosts
	$(GO) build -o bin/tckhost ./host/lab/tckhost
	$(GO) run github.com/sluice-proxy/sluice/sdk/tck/checkhost bin/tckhost

# Programs that the tests need in addition to Go: nft (reads the ruleset back), iproute2 (links and addresses), wabt (hostile
# modules), clang and lld (a guest in C), and others.
deps:
	@.ci/deps

# etcd, Kubernetes and kubectl, built from their Go modules: minutes the first time, kept in the user's cache.
cluster-programs:
	@$(GO) run ./host/lab/testcluster/build etcd kube-apiserver kube-controller-manager kubectl kube-proxy

# kubelet, CoreDNS, containerd and others for real nodes, and their images: minutes the first time, kept in the user's cache.
node-programs:
	@$(GO) run ./host/lab/realcluster/programs/build

# A real Kubernetes cluster of namespaces, with sluice installed as deploy/README.md says, until cluster-down. As root, on Debian 12.
NAME        := lab
WORKERS     := 3
FAMILY      := ipv4
MODE        := nftables
# 6.12: workers are guests of that kernel, with IPVS and SCTP.
KERNEL      :=
cluster: build image $(if $(KERNEL),vm-kernels)
	$(GO) build -o bin/cluster ./host/lab/realcluster/run
	bin/cluster up -name '$(NAME)' -workers '$(WORKERS)' -family '$(FAMILY)' -mode '$(MODE)' -kernel '$(KERNEL)' -tag '$(VERSION)'

cluster-down:
	@$(GO) build -o bin/cluster ./host/lab/realcluster/run
	@bin/cluster down -name '$(NAME)'

# Kubernetes' own network tests against kube-proxy and sluice, in real clusters, one for each IP family; fails if kube-proxy passes a spec that
# sluice does not. E2E_FLAGS are its flags, such as -families ipv4 or -focus. As root, on Debian 12, for an hour and a half.
E2E_FLAGS   :=
e2e: image node-programs
	$(GO) build -o bin/e2e/e2e ./host/lab/realcluster/e2e
	bin/e2e/e2e -tag '$(VERSION)' -write host/E2E.md $(E2E_FLAGS)

# Follows deploy/README.md on real nodes, under load, and runs Kubernetes' network tests of Services. As root on Debian 12; 9 minutes once built.
test-nodes: cluster-programs
	@$(GO) run ./host/lab/realcluster/programs/build suite >/dev/null
	SLUICE_TEST_NODES=1 $(GO) test -vet=off -count=1 -v -timeout 20m ./deploy/nodes

# Flannel, kube-router and Calico as the networks of real clusters, with kube-proxy and then with sluice: who answers whom, with which source, and
# network policies, which COMPATIBILITY.md is about. NETWORK_PLUGINS= names some. As root on Debian 12; half an hour, the first time more.
NETWORK_PLUGINS := flannel kube-router calico
test-cni: cluster-programs
	@$(GO) run ./host/lab/realcluster/programs/build $(NETWORK_PLUGINS) >/dev/null
	SLUICE_TEST_CNI='$(NETWORK_PLUGINS)' $(GO) test -vet=off -count=1 -v -timeout 60m -run TestBesideNetworkPlugins ./deploy/nodes

# deploy/README.md from kube-proxy to sluice and back, under load, from all of its modes and with 10,000 Services. As root on Debian 12; half
# an hour. HANDOVER='^ipvs$$' runs one.
HANDOVER    := .
test-handover: cluster-programs node-programs vm-kernels
	SLUICE_TEST_HANDOVER=1 $(GO) test -vet=off -count=1 -v -timeout 60m -run 'TestHandOver/$(HANDOVER)' ./deploy/nodes

# What realcluster promises: everything that it starts ends, and the machine is as before. Six minutes.
test-realcluster: node-programs vm-kernels
	SLUICE_TEST_REALCLUSTER=1 $(GO) test -count=1 -timeout 20m ./host/lab/realcluster

# Faults of nodes and of the control plane, and policies, with real Pods and clients, beside kube-proxy: they write host/PODS.md. The rows of
# earlier runs stay: RUN= runs some. Half an hour each; most of it is waiting. As root, on Debian 12.
OUTAGE      := 10m
RUN         :=
PROXIES     := sluice,kube-proxy
e2e-faults: FAULTS := nodes -outage '$(OUTAGE)'
experiment-pods: FAULTS := pods -svg host/pods.svg
e2e-faults experiment-pods: build image node-programs
	$(GO) build -o bin/faults ./host/lab/realcluster/faults
	bin/faults $(FAULTS) -run '$(RUN)' -proxies '$(PROXIES)' -tag '$(VERSION)' -results bin/$@.json -write host/PODS.md

test-cluster: deps build cluster-programs
	$(GO) test -timeout 20m ./host/lab/testcluster/... ./host/api/... ./host/source/kube/cluster ./host/controller/cluster ./cmd/sluice/cluster

# Kernels other than this machine's: User-Mode Linux from Debian's sources, each 8 CPU minutes the first time, kept in
# the user's cache. x86 only.
KERNELS     := 6.1 6.12
VM_PACKAGES := ./host/backend/nftables/... ./host/backend/ipvs ./host/backend/conntrack ./host/node/kubeproxy ./host/lab/testnet ./host/node/probe
# VM_FLAGS are flags of go test: -p 1 runs one virtual machine at a time for each kernel.
VM_FLAGS    :=
# With SHORT=-short, kernels but the oldest run what needs IPVS only: the oldest and that of this machine run the rest. The oldest runs the tests of
# IPVS that depend on what the kernel has, tells and counts.
ifdef SHORT
OLDEST      := $(patsubst %,test-packages-%,$(filter-out $(lastword $(KERNELS)),$(firstword $(KERNELS))))
$(OLDEST): VM_PACKAGES := $(filter-out ./host/backend/ipvs,$(VM_PACKAGES))
$(OLDEST): IPVS_TESTS := TestConformance$$|TestProbe|TestOpen|TestStats|TestExternalChanges|TestEachBalance|TestOutcomes|TestKubeProxy
$(patsubst %,test-packages-%,$(filter-out $(firstword $(KERNELS)),$(KERNELS))): VM_PACKAGES := ./host/backend/ipvs ./host/backend/conntrack ./host/node/kubeproxy ./host/node/probe
endif
# Guests see the user's cache even if it is in /tmp. Quoted for go test -exec, which parses quotes.
CACHE       := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)
VM          := '$(CURDIR)/bin/vm' exec -memory 1536 -share '$(CACHE)'

vm-kernels:
	@$(GO) build -o bin/vm ./host/lab/vm/run
	@bin/vm build $(KERNELS)

# arm64, on a machine of another architecture. Packages whose tests start no programs for arm64 run by qemu-user. Debian's kernel for arm64 runs in
# QEMU, with the conformance kit of nftables, the confinement of plugins, and code that is compiled there. With SHORT=-short, which test-all has,
# these are parts.
SDK         := github.com/sluice-proxy/sluice/sdk
ARM64       := ./host/core/eligibility ./host/core/model ./host/core/outcomes ./host/plugin/wasm/meter $(SDK)/abi $(SDK)/manifest
ARM64_RULES := TestConformance
ifdef SHORT
ARM64_RULES := TestConformance/(a_restart|connections_follow)
else
ARM64       += ./host/core/plan $(SDK) $(SDK)/sdktest
endif
test-arm64: test-arm64-user test-arm64-guest

test-arm64-user: deps
	GOARCH=arm64 $(GO) test -vet=off -count=1 -timeout 45m $(SHORT) -exec 'qemu-aarch64 -cpu max' $(ARM64)

# A guest's init is bin/vm, built for its architecture.
vm-arm64:
	@$(GO) build -o bin/vm ./host/lab/vm/run
	@GOARCH=arm64 $(GO) build -o bin/vm-arm64 ./host/lab/vm/run
	@bin/vm build arm64

ON_ARM64     = GOARCH=arm64 XDG_CACHE_HOME='$(CACHE)' $(GO) test -vet=off -count=1 -timeout 45m $(SHORT) -exec "$(VM) -kernel arm64"
test-arm64-guest: deps vm-arm64
	$(ON_ARM64) -run '$(ARM64_RULES)' ./host/backend/nftables
	$(ON_ARM64) ./host/plugin/confine
	$(ON_ARM64) -run 'TestPrecompiledCodeIsNotCompiled|TestProcessHasNoRights|TestGuestsReadNoRegisters' ./host/plugin/wasm

test-vm: $(KERNELS:%=test-vm-%) test-guide

test-ipvs: $(KERNELS:%=test-ipvs-%)

test-ipvs-%:
	$(MAKE) --no-print-directory test-packages-$* VM_PACKAGES=./host/backend/ipvs

# etcd, kube-apiserver, kubectl and kube-proxy run in the guest, which needs 3 GB and has another HOME. 2 to 5 minutes on the
# newest kernel; on 6.1 a control plane was not ready within three.
test-guide: test-guide-$(lastword $(KERNELS))

test-guide-%: deps build vm-kernels cluster-programs
	XDG_CACHE_HOME='$(CACHE)' SLUICE_BINARY='$(CURDIR)/bin/sluice' $(GO) test -vet=off -count=1 -timeout 45m $(SHORT) \
	  -exec "$(VM) -memory 3072 -kernel $*" ./cmd/sluice/guide

# Test kernels see the user's cache read-only, and take half a minute for compiling one plugin.
compiled-plugins: build bin/e2e/signals.wasm bin/e2e/prefer.wasm
	@XDG_CACHE_HOME='$(CACHE)' bin/sluice config check cmd/sluice/e2e/plugins.yaml

test-vm-%: test-packages-% test-e2e-nftables-% test-e2e-ipvs-%
	@:

# In a guest, with sluice's command, and plugins that are compiled before.
IN_GUEST     = XDG_CACHE_HOME='$(CACHE)' SLUICE_E2E_PLUGINS='$(CURDIR)/bin/e2e' SLUICE_BINARY='$(CURDIR)/bin/sluice' \
  $(1) $(GO) test -vet=off -count=1 -timeout 45m $(VM_FLAGS) $(SHORT) -exec "$(VM) -kernel $*"

test-packages-%: deps build vm-kernels compiled-plugins
	$(call IN_GUEST) $(VM_PACKAGES)
	$(if $(IPVS_TESTS),$(call IN_GUEST) -run '$(IPVS_TESTS)' ./host/backend/ipvs)

# What differs between modes and kernels; without SHORT=-short, mode nftables runs all.
E2E_OF_MODES := -run 'TestKill|TestForwardingContinues|TestInvalidInput|TestOnce|TestPluginSees|TestLocalhostNodePorts|TestUDPFlows'
test-e2e-nftables-%: deps build vm-kernels compiled-plugins
	$(call IN_GUEST) $(if $(SHORT),$(E2E_OF_MODES)) ./cmd/sluice/e2e

test-e2e-ipvs-%: deps build vm-kernels compiled-plugins
	$(call IN_GUEST,SLUICE_MODE=ipvs) $(E2E_OF_MODES) ./cmd/sluice/e2e

# BASE is a commit: what differs from it is checked and tested.
quick:
	@GO='$(GO)' STATICCHECK='$(STATICCHECK)' BASE='$(BASE)' .ci/quick

# The race detector needs cgo: gcc and the C library's headers, which deps installs.
RACE        := ./host/core/... ./host/engine/... ./host/node/agent/... ./host/plugin/wasm/... ./host/source ./host/source/dir ./host/source/kube
race: deps
	CGO_ENABLED=1 $(GO) test -race -short -timeout 40m $(RACE)

test:
	+@MAKE='$(MAKE)' GO='$(GO)' KERNELS='$(KERNELS)' .ci/test

# make test, the packages that it leaves out, and beside them test kernels and a cluster of real nodes: deploy/README.md under load, and
# Kubernetes' network tests of Services. Then linters and the race detector.
test-all:
	+@EVERYTHING=1 $(MAKE) --no-print-directory test

# Measures the bundled plugins and two trivial ones, in Go and, if clang and lld are installed, in C. Needs root: network namespaces, and real-time
# priority for the process that ticks.
bench: build
	@mkdir -p bin/bench-guests
	$(GUEST) -o bin/bench-guests/go.wasm ./host/lab/bench/guest
	@$(EMBED) bin/bench-guests/go.wasm host/lab/bench/guest
	@rm -f bin/bench-guests/c.wasm; if command -v clang >/dev/null && command -v wasm-ld >/dev/null; then \
	  clang --target=wasm32 -O2 -nostdlib -ffreestanding -fno-builtin -Wl,--no-entry -I sdk/c examples/plugin-c/zone_first.c \
	    -o bin/bench-guests/c.wasm && $(EMBED) bin/bench-guests/c.wasm examples/plugin-c; else echo 'no clang and lld: the guest in C is not measured'; fi
	$(GO) build -o bin/bench ./host/lab/bench
	bin/bench -write host/README.md

# Needs root, nft, and 2 CPUs without other load.
bench-peer: build cluster-programs
	$(GO) build -o bin/bench-cluster ./host/lab/bench/cluster
	bin/bench-cluster peer -write host/README.md

# Measures BASE, the binary of another build of sluice, instead of kube-proxy, and writes nothing.
bench-peer-base: build cluster-programs
	$(GO) build -o bin/bench-cluster ./host/lab/bench/cluster
	bin/bench-cluster peer -base '$(or $(BASE),$(error BASE= names the binary of the other build))' -sizes 1000,10000

# Connections through kube-proxy, sluice and one rule. Needs root, nft, and 2 CPUs without other load.
bench-dataplane: build cluster-programs
	$(GUEST) -o bin/zone-first.wasm ./examples/plugin-zone-first
	$(GO) build -o bin/bench-cluster ./host/lab/bench/cluster
	bin/bench-cluster dataplane -write host/README.md

bench-fleet: cluster-programs
	$(GO) build -o bin/bench-cluster ./host/lab/bench/cluster
	bin/bench-cluster fleet -write host/FLEET.md
	bin/bench-cluster fleet-policies -write host/FLEET.md

# Runs sluice beside hostile plugins and tenants for DURATION, at least 1m, and fails if anything grows or a connection fails.
DURATION    ?= 30m
soak: deps build
	@mkdir -p bin/soak-guests
	$(GUEST) -o bin/soak-guests/hostile.wasm ./host/lab/bench/soak/guest
	@$(EMBED) bin/soak-guests/hostile.wasm host/lab/bench/soak/guest
	$(GO) build -o bin/bench-cluster ./host/lab/bench/cluster
	bin/bench-cluster soak -duration $(DURATION)

# Fuzzes each target for FUZZTIME, one after the other.
FUZZTIME    ?= 20s
fuzz:
	GO='$(GO)' .ci/fuzz $(FUZZTIME)

fmt:
	gofmt -s -w cmd host plugins sdk deploy examples

format-check:
	@unformatted=$$(gofmt -s -l cmd host plugins sdk deploy examples); \
	  if [ -n "$$unformatted" ]; then echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; fi

vet:
	$(GO) vet $(ALL)

lint: format-check vet
	$(GO) run $(STATICCHECK) $(ALL)
	$(GO) run $(GOLANGCI) run ./...
	cd sdk && $(GO) run $(GOLANGCI) run ./...

check: lint
	$(GO) mod tidy
	cd sdk && $(GO) mod tidy
	@if [ -n "$$(git status --porcelain)" ]; then echo 'the tree is not clean:'; git status --porcelain; exit 1; fi

# The CustomResourceDefinitions, and the copies of their types.
generate:
	$(GO) run $(CONTROLLERGEN) object crd:allowDangerousTypes=true,maxDescLen=400 paths=./host/api/v1alpha1 output:crd:dir=deploy/kustomize/crds output:object:dir=host/api/v1alpha1

clean:
	rm -rf bin
