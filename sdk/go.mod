module github.com/sluice-proxy/sluice/sdk

go 1.26.0
