# cmake --install: headers, both libraries and a package for find_package(Caravan).
